package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/transport"
)

// attemptRecord is what the log says of one attempt to publish an event. It holds neither the key
// nor the payload, which may be of a person.
type attemptRecord struct {
	id                 uuid.UUID
	topic, correlation string
	attempt            int // counted attempts before, and this one
	redelivered        bool
}

// logging returns done with a record at level debug for each event of the send. Without that level
// it returns done, and allocates nothing. It copies what it needs: e belongs to the core again once
// the outcome is known.
func (l *relayLoop) logging(ctx context.Context, e *core.Entry, done func(transport.Result)) func(transport.Result) {
	if !l.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		return done
	}
	return l.logged(ctx, e, done)
}

// logged is logging with the level debug.
func (l *relayLoop) logged(ctx context.Context, e *core.Entry, done func(transport.Result)) func(transport.Result) {
	began := time.Now()
	records := make([]attemptRecord, 0, 1+len(e.BatchTail))
	records = append(records, recordOf(e))
	for _, member := range e.BatchTail {
		records = append(records, recordOf(member))
	}
	return func(res transport.Result) {
		took := time.Since(began)
		for i := range records {
			r := &records[i]
			attrs := append(make([]slog.Attr, 0, 10), slog.String("dispatch_id", r.id.String()))
			if r.correlation != "" {
				attrs = append(attrs, slog.String("correlation_id", r.correlation))
			}
			attrs = append(attrs, slog.String("topic", r.topic), slog.Int("attempt", r.attempt),
				slog.String("outcome", res.Outcome.String()), slog.Duration("duration", took), slog.String("relay", l.cfg.Name))
			if r.redelivered {
				attrs = append(attrs, slog.Bool("redelivered", true))
			}
			if len(records) > 1 {
				attrs = append(attrs, slog.Int("batch", len(records)))
			}
			if res.Err != nil {
				attrs = append(attrs, slog.Any("error", res.Err))
			}
			l.cfg.Logger.LogAttrs(ctx, slog.LevelDebug, "attempt to publish an event", attrs...)
		}
		done(res)
	}
}

func recordOf(e *core.Entry) attemptRecord {
	return attemptRecord{id: e.ID, topic: e.Topic, correlation: e.CorrelationID, attempt: e.Attempts + 1, redelivered: e.Redelivered}
}
