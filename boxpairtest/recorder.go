package boxpairtest

import (
	"context"
	"slices"
	"sync"

	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/store/outbox"
)

// Recorder records the events that are written with its context. Events of Transact and of handlers
// are recorded once they are committed, and events in a transaction of the caller (Outbox.Tx,
// Outbox.WithTx) as soon as they are written. An event that the outbox has already is recorded only
// if the event was queued. Messages that a handler gets in a group of several are not recorded. The
// zero value is ready for use. A Recorder is safe for concurrent use.
type Recorder struct {
	uncommitted bool // events of transactions that are rolled back are recorded, too

	mu     sync.Mutex
	events []outbox.Record
	failed error  // of the last handler
	parked string // why the last message was set aside
}

// Context returns ctx with r as the recorder. Pass this context to the code under test; in an HTTP
// test, as the context of the request.
func (r *Recorder) Context(ctx context.Context) context.Context {
	return observe.Context(ctx, (*recording)(r))
}

// Events returns the recorded events, in the order in which their transactions were committed.
func (r *Recorder) Events() []outbox.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Reset forgets the recorded events.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}

// recording is a Recorder as an observer of transactions.
type recording Recorder

// Begin implements [observe.Observer].
func (r *recording) Begin() (observe.Watch, error) { return (*recordedTransaction)(r), nil }

// Parked implements [observe.Observer].
func (r *recording) Parked(state, lastError string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parked = "set aside as " + state + ": " + lastError
}

type recordedTransaction Recorder

// Statement implements [observe.Watch].
func (r *recordedTransaction) Statement(string) error { return nil }

// Returned implements [observe.Watch].
func (r *recordedTransaction) Returned(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = err
	return err
}

// Ended implements [observe.Watch].
func (r *recordedTransaction) Ended(events []observe.Event, err error) error {
	if err != nil && !r.uncommitted {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		r.events = append(r.events, e.Record.(outbox.Record))
	}
	return err
}
