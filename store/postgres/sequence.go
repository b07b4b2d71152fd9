package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// lastNumber compares what the sequence has given out with the events, of an earlier moment. A role that may not look at the sequence
// gets no answer. One that has given out nothing begins where it was told to.
var lastNumber = statement(`
SELECT m.id, quote_ident(s.schemaname) || '.' || quote_ident(s.sequencename),
    has_sequence_privilege(quote_ident(s.schemaname) || '.' || quote_ident(s.sequencename), 'USAGE, SELECT'), coalesce(s.last_value, s.start_value - 1)
FROM (SELECT coalesce(max(id), 0) AS id FROM {{outbox_events}}) m, pg_sequences s
WHERE (quote_ident(s.schemaname) || '.' || quote_ident(s.sequencename))::regclass = pg_get_serial_sequence($1, 'id')::regclass`)

// CheckSequence returns an error if the sequence of event numbers goes on below a number that is there, as after a
// fail-over that does not copy sequences, or TRUNCATE ... RESTART IDENTITY: events that are written now would overtake older ones of
// their key. The error says what to run. It is nil where the role may not read the sequence.
func (s *Store) CheckSequence(ctx context.Context) error {
	var highest int64
	var last pgtype.Int8
	var name string
	var may bool
	if err := s.queryRow(ctx, lastNumber, s.names.Table("outbox_events")).Scan(&highest, &name, &may, &last); err != nil {
		return failed("compare the sequence with the events", err)
	}
	if !may || last.Int64 >= highest {
		return nil
	}
	return fmt.Errorf("the sequence %s is at %d, and there are events up to %d: before anything is written, run SELECT setval('%s', %d)",
		name, last.Int64, highest, name, highest)
}
