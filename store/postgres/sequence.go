package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// lastNumber compares the last number of the sequence with the highest id of an earlier moment:
// while numbers ascend, the sequence is never below.
var lastNumber = statement(`
SELECT m.id, s.name, has_sequence_privilege(s.name::regclass, 'SELECT'),
    CASE WHEN has_sequence_privilege(s.name::regclass, 'SELECT') THEN pg_sequence_last_value(s.name::regclass) END
FROM (SELECT coalesce(max(id), 0) AS id FROM {{outbox_events}}) m, (SELECT pg_get_serial_sequence($1, 'id') AS name) s`)

// numbers is a row of lastNumber.
type numbers struct {
	highest int64
	last    pgtype.Int8
	name    pgtype.Text
	may     pgtype.Bool
}

func (n *numbers) scan(row pgx.Row) error { return row.Scan(&n.highest, &n.name, &n.may, &n.last) }

// CheckSequence implements [outbox.SequenceChecker]. It returns nil for a role that may not read
// the sequence.
func (s *Store) CheckSequence(ctx context.Context, read int64) error {
	var n numbers
	if err := n.scan(s.queryRow(ctx, lastNumber, s.names.Table("outbox_events"))); err != nil {
		return failed("compare the sequence with the events", err)
	}
	return s.compare(ctx, n, read)
}

// compare returns a [outbox.SequenceError] if the last number is below the highest, or below read.
func (s *Store) compare(ctx context.Context, n numbers, read int64) error {
	n.highest = max(n.highest, read)
	if !n.may.Bool || n.highest == 0 {
		return nil
	}
	if !n.last.Valid { // no number was given out since the sequence was set
		if err := s.pool.QueryRow(ctx, "SELECT last_value - 1 FROM "+n.name.String, s.mode).Scan(&n.last); err != nil {
			return failed("read the sequence", err)
		}
	}
	if n.last.Int64 >= n.highest {
		return nil
	}
	return &outbox.SequenceError{Sequence: n.name.String, Last: n.last.Int64, Highest: n.highest}
}
