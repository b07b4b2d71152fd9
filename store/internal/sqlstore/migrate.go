package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/boxpair/boxpair/migrations"
)

// Migrate applies the pending migrations among known, records them in the history, and returns
// them. The caller keeps other processes from migrating meanwhile.
func (c *Core) Migrate(ctx context.Context, q Querier, known []migrations.Migration,
	apply func(ctx context.Context, m migrations.Migration) error,
) ([]migrations.Applied, error) {
	history, err := c.history(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	pending, err := migrations.Pending(known, history)
	if err != nil {
		return nil, err
	}
	for _, m := range pending {
		if err := apply(ctx, m); err != nil {
			return nil, fmt.Errorf("apply %d (%s): %w", m.Number, m.Name, err)
		}
		_, err := c.Exec(ctx, q, `INSERT INTO {`+migrations.HistoryTable+`} (number, name, checksum, applied_at) VALUES (?, ?, ?, {now})`,
			m.Number, m.Name, m.Checksum)
		if err != nil {
			return nil, fmt.Errorf("record %d (%s): %w", m.Number, m.Name, err)
		}
	}
	all, err := c.history(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return all[len(history):], nil
}

// CheckSchema compares the migrations of the database with known. The error wraps
// [migrations.ErrMissing] if the database lacks a migration, and [migrations.ErrChanged] if a
// migration differs. Later migrations are no error. If another tool has made the tables,
// CheckSchema cannot tell and returns nil.
func (c *Core) CheckSchema(ctx context.Context, known []migrations.Migration) error {
	history, err := c.history(ctx, c.DB)
	if err != nil && errors.Is(err, migrations.ErrMissing) {
		history = nil
		var events int
		if err = c.One(ctx, c.DB, []any{&events}, `SELECT COUNT(*) FROM {outbox_events} WHERE 1 = 0`); err == nil {
			return nil
		}
		if errors.Is(err, migrations.ErrMissing) {
			err = nil
		}
	}
	if err == nil {
		err = migrations.Check(known, history)
	}
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	return nil
}

func (c *Core) history(ctx context.Context, q Querier) ([]migrations.Applied, error) {
	return collect(ctx, c, q, func(rows *sql.Rows) (a migrations.Applied, err error) {
		var at int64
		err = rows.Scan(&a.Number, &a.Name, &a.Checksum, &at)
		a.At = Instant(at)
		return a, err
	}, `SELECT number, name, checksum, applied_at FROM {`+migrations.HistoryTable+`} ORDER BY number`)
}
