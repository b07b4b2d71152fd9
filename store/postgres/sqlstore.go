package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// SQLStore is a [Store] with transactions of database/sql, for services on sqlx, GORM, ent or
// database/sql itself. All work outside a transaction of the caller (relays, janitors, operators,
// the bookkeeping of inboxes) uses the pool. A SQLStore is safe for concurrent use.
//
// Writers take any open [sql.Tx] on the store's database whose [sql.DB] runs on pgx's package
// stdlib. The pool may also serve the [sql.DB], so that a process has one pool:
//
//	pool, err := pgxpool.New(ctx, url)
//	db := stdlib.OpenDBFromPool(pool)      // for sqlx, GORM, ent
//	store, err := postgres.NewSQL(pool, postgres.Config{})
//
// Handlers and the function of [SQLStore.Transact] get a transaction of the store. To commit it or
// roll it back is an error: the store ends the transaction.
type SQLStore struct {
	// Store is the store on pgx, with the methods that SQLStore does not define.
	*Store
}

var (
	_ outbox.Store[*sql.Tx]       = (*SQLStore)(nil)
	_ outbox.ArchiveStore         = (*SQLStore)(nil)
	_ inbox.Store[*sql.Tx]        = (*SQLStore)(nil)
	_ inbox.RequestStore[*sql.Tx] = (*SQLStore)(nil)

	_ inbox.EffectStore[*sql.Tx] = (*SQLStore)(nil)
)

// ErrNotPgx is wrapped when a transaction does not belong to pgx's package stdlib, because of
// another driver, or a wrapper around the driver that changes arguments.
var ErrNotPgx = errors.New("the transaction is not one of pgx's stdlib (github.com/jackc/pgx/v5/stdlib)")

// NewSQL is [New] for transactions of database/sql. It does no I/O: [Migrate] creates the tables.
// The caller closes the pool after all users of the store have ended.
func NewSQL(pool *pgxpool.Pool, cfg Config) (*SQLStore, error) {
	store, err := New(pool, cfg)
	if err != nil {
		return nil, err
	}
	store.conns = lender{pool}
	return &SQLStore{Store: store}, nil
}

// Append implements [outbox.EventStore], in one round trip.
func (s *SQLStore) Append(ctx context.Context, tx *sql.Tx, writer uuid.UUID, records []outbox.Record) (known []bool, err error) {
	if len(records) == 0 {
		return nil, nil
	}
	err = within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error {
		known, err = s.Store.Append(ctx, tx, writer, records)
		return err
	})
	return known, err
}

// Cancel implements [outbox.EventStore] as [Store.Cancel] does.
func (s *SQLStore) Cancel(ctx context.Context, tx *sql.Tx, ids []uuid.UUID, reason string) (cancelled []uuid.UUID, err error) {
	err = within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error {
		cancelled, err = s.Store.Cancel(ctx, tx, ids, reason)
		return err
	})
	return cancelled, err
}

// Reschedule implements [outbox.EventStore] as [Store.Reschedule] does.
func (s *SQLStore) Reschedule(ctx context.Context, tx *sql.Tx, ids []uuid.UUID, at time.Time) (moved []uuid.UUID, err error) {
	err = within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error {
		moved, err = s.Store.Reschedule(ctx, tx, ids, at)
		return err
	})
	return moved, err
}

// LockKeys implements [outbox.EventStore] as [Store.LockKeys] does.
func (s *SQLStore) LockKeys(ctx context.Context, tx *sql.Tx, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	return within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error { return s.Store.LockKeys(ctx, tx, keys) })
}

// Transact implements [outbox.EventStore] as [Store.Transact] does, but with separate round trips
// for BEGIN, queued events and COMMIT: statements cannot be queued for the end of a transaction of
// database/sql.
func (s *SQLStore) Transact(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, func(ctx context.Context, g *guard) error {
		if _, err := g.tx.begun(ctx); err != nil {
			return err
		}
		return lend(ctx, &g.root, func(tx *sql.Tx) error { return fn(ctx, tx) })
	})
}

// Savepoint implements [outbox.EventStore]. If fn swallowed the error of a statement, the savepoint
// cannot be released: Savepoint rolls back to the savepoint and returns an error.
func (s *SQLStore) Savepoint(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if err := savepoint(ctx, tx, "SAVEPOINT boxpair_sp"); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	released := false
	defer func() {
		if released {
			return
		}
		// fn failed, panicked or called Goexit. Savepoints of one name hide each other, so this
		// savepoint must go. A broken connection ends the transaction, and the savepoint with it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = savepoint(ctx, tx, "ROLLBACK TO SAVEPOINT boxpair_sp", "RELEASE SAVEPOINT boxpair_sp")
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	err := within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error {
		if tx.Conn().PgConn().TxStatus() == 'E' {
			return errSavepointFailed
		}
		_, err := tx.Exec(ctx, "RELEASE SAVEPOINT boxpair_sp")
		return err
	})
	if err != nil {
		return fmt.Errorf("release savepoint: %w", err)
	}
	released = true
	return nil
}

func savepoint(ctx context.Context, tx *sql.Tx, statements ...string) error {
	return within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error {
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// Apply implements [inbox.ClaimStore] as [Store.Apply] does, with as many round trips. No claim is
// Optimistic.
func (s *SQLStore) Apply(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) (inbox.Verdict, error) {
	c.Optimistic = false // statements on the connection bypass the store
	return s.Store.Apply(ctx, c, func(ctx context.Context, tx pgx.Tx) error {
		return lend(ctx, tx, func(tx *sql.Tx) error { return fn(ctx, tx) })
	})
}

// ApplyGroup implements [inbox.ClaimStore] as [Store.ApplyGroup] does.
func (s *SQLStore) ApplyGroup(ctx context.Context, claims []inbox.Claim, fn func(ctx context.Context, tx *sql.Tx, run []int) error) ([]inbox.Verdict, error) {
	return s.Store.ApplyGroup(ctx, claims, func(ctx context.Context, tx pgx.Tx, run []int) error {
		return lend(ctx, tx, func(tx *sql.Tx) error { return fn(ctx, tx, run) })
	})
}

// ApplyParked implements [inbox.ParkedStore] as [Store.ApplyParked] does.
func (s *SQLStore) ApplyParked(ctx context.Context, c inbox.Claim, seq int64, fn func(ctx context.Context, tx *sql.Tx, m *inbox.Parked) error) (bool, error) {
	return s.Store.ApplyParked(ctx, c, seq, func(ctx context.Context, tx pgx.Tx, m *inbox.Parked) error {
		return lend(ctx, tx, func(tx *sql.Tx) error { return fn(ctx, tx, m) })
	})
}

// PrepareEffect implements [inbox.EffectStore] as [Store.PrepareEffect] does.
func (s *SQLStore) PrepareEffect(ctx context.Context, tx *sql.Tx, e inbox.EffectIntent) error {
	return within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error { return s.Store.PrepareEffect(ctx, tx, e) })
}

// FinishEffect implements [inbox.EffectStore] as [Store.FinishEffect] does.
func (s *SQLStore) FinishEffect(ctx context.Context, c inbox.Claim, r *inbox.EffectRun, result []byte,
	fn func(ctx context.Context, tx *sql.Tx) error,
) (bool, error) {
	return s.Store.FinishEffect(ctx, c, r, result, func(ctx context.Context, tx pgx.Tx) error {
		return lend(ctx, tx, func(tx *sql.Tx) error { return fn(ctx, tx) })
	})
}

// Classify implements [inbox.ClaimStore] as [Store.Classify] does. An error of database/sql about a
// broken connection belongs to the infrastructure, too.
func (s *SQLStore) Classify(err error) inbox.ErrorClass {
	class := s.Store.Classify(err)
	if class == inbox.HandlerError && errors.Is(err, driver.ErrBadConn) {
		return inbox.Infrastructure
	}
	return class
}

// ClaimRequest implements [inbox.RequestStore] as [Store.ClaimRequest] does.
func (s *SQLStore) ClaimRequest(ctx context.Context, tx *sql.Tx, r inbox.Request, wait time.Duration) (a *inbox.Answer, err error) {
	err = within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error {
		a, err = s.Store.ClaimRequest(ctx, tx, r, wait)
		return err
	})
	return a, err
}

// AnswerRequest implements [inbox.RequestStore] as [Store.AnswerRequest] does.
func (s *SQLStore) AnswerRequest(ctx context.Context, tx *sql.Tx, r inbox.Request, a inbox.Answer) error {
	return within(ctx, tx, func(ctx context.Context, tx pgx.Tx) error { return s.Store.AnswerRequest(ctx, tx, r, a) })
}
