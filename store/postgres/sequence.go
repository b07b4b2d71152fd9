package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// lastNumber compares the last number of the sequence with the highest id of an earlier moment:
// while numbers ascend, the sequence is never below.
var lastNumber = statement(`
SELECT m.id, s.name, has_sequence_privilege(s.name::regclass, 'SELECT'),
    CASE WHEN has_sequence_privilege(s.name::regclass, 'SELECT') THEN pg_sequence_last_value(s.name::regclass) END
FROM (SELECT coalesce(max(id), 0) AS id FROM {{outbox_events}}) m, (SELECT pg_get_serial_sequence($1, 'id') AS name) s`)

// CheckSequence implements [outbox.SequenceChecker]. It returns nil for a role that may not read
// the sequence.
func (s *Store) CheckSequence(ctx context.Context, read int64) error {
	var highest int64
	var last pgtype.Int8
	var name pgtype.Text
	var may pgtype.Bool
	if err := s.queryRow(ctx, lastNumber, s.names.Table("outbox_events")).Scan(&highest, &name, &may, &last); err != nil {
		return failed("compare the sequence with the events", err)
	}
	if !may.Bool {
		return nil
	}
	if !last.Valid { // no number was given out since the sequence was set
		if err := s.pool.QueryRow(ctx, "SELECT last_value - 1 FROM "+name.String, s.mode).Scan(&last); err != nil {
			return failed("read the sequence", err)
		}
	}
	if highest = max(highest, read); last.Int64 >= highest {
		return nil
	}
	return &outbox.SequenceError{Sequence: name.String, Last: last.Int64, Highest: highest}
}
