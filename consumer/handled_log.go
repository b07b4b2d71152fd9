package consumer

import (
	"context"
	"log/slog"
	"time"
)

// The results of a message in the log, beside the states of parked messages.
const (
	resultApplied   = "applied"
	resultDuplicate = "duplicate"
	resultStored    = "stored"
	resultReturned  = "returned"
)

// handledLog writes one record at level debug for a message that was handled. Without that level it
// does nothing. A record holds neither the key nor the payload of the message.
type handledLog[TX any] struct {
	h     *Handler[TX]
	ctx   context.Context //nolint:containedctx // of the one message
	began time.Time       // zero without the level
}

// beginLog begins to measure the handling of a message.
func (h *Handler[TX]) beginLog(ctx context.Context) handledLog[TX] {
	l := handledLog[TX]{h: h, ctx: ctx}
	if h.log.Enabled(ctx, slog.LevelDebug) {
		l.began = time.Now()
	}
	return l
}

// delivered writes the record of a message from the transport.
func (l handledLog[TX]) delivered(d *delivery, err error) {
	if l.began.IsZero() || d.in == nil {
		return
	}
	result := d.result
	if err != nil {
		result = resultReturned
	}
	l.write(d.in, result, d.redelivered, err)
}

// retried writes the record of a parked message that was applied. A parked message that has failed
// again has a record of a higher level.
func (l handledLog[TX]) retried(m *parkedMessage[TX], err error) {
	if l.began.IsZero() || err != nil || !m.applied || m.message == nil {
		return
	}
	l.write(l.h.fromParked(m.message), resultApplied, false, nil)
}

func (l handledLog[TX]) write(in *incoming, result string, redelivered bool, err error) {
	attrs := l.h.attrs(in, "outcome", result, "duration", time.Since(l.began))
	if redelivered {
		attrs = append(attrs, "redelivered", true)
	}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	l.h.log.DebugContext(l.ctx, "message handled", attrs...)
}
