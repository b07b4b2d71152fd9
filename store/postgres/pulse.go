package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// Pulse implements [outbox.Pulser] in one round trip. The server keeps the plans of its statements,
// see [Store.kept].
func (s *Store) Pulse(ctx context.Context, relay string, ttl time.Duration, leases []outbox.Lease, read int64, poll *outbox.Poll) (outbox.Pulse, error) {
	if !s.keeps || s.hidden.Load() {
		return outbox.Pulse{}, errors.ErrUnsupported
	}
	var p outbox.Pulse
	var n numbers
	shards, epochs := split(leases)
	b := s.keptBatch()
	b.Queue(s.sql[renew], relay, micros(ttl), shards, epochs).Query(func(rows pgx.Rows) (err error) {
		p.Renewals, err = renewals(rows)
		return err
	})
	b.Queue(s.sql[heartbeat], relay, micros(ttl), farAheadFor(ttl)).QueryRow(func(row pgx.Row) error { return row.Scan(&p.Live) })
	b.Queue(identity + named).QueryRow(func(row pgx.Row) error { return row.Scan(&p.Identity) })
	b.Queue(s.sql[lastNumber], s.names.Table("outbox_events")).QueryRow(n.scan)
	var next pgtype.Int8
	err := gathered(func(found []outbox.Queued) { p.Rows = bySeq(found) }, func(read func(pgx.Rows) error) error {
		if poll != nil {
			s.queuePoll(b, *poll, read, &next)
		}
		return s.pool.SendBatch(ctx, b).Close()
	})
	if hides(err) { // the transaction was rolled back
		s.hidden.Store(true)
		return outbox.Pulse{}, errors.ErrUnsupported
	}
	if err != nil {
		return outbox.Pulse{}, failed("renew leases with a heartbeat", err)
	}
	p.Next = untilNext(next)
	p.Sequence = s.compare(ctx, n, read)
	return p, nil
}
