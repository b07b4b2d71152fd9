package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// Extension is work that the transactions of a handler leave behind and that [Inbox.Run] does, like
// the calls of package effects. It is for packages of this library and may change with any release.
type Extension interface {
	// Run works until ctx ends, and then waits for everything that it has begun.
	Run(ctx context.Context)
	// RunOnce does all work that is due, each piece at most once, one after another.
	RunOnce(ctx context.Context) error
	// Wake says that work may be due. It does not block.
	Wake()
	// Forget removes at most limit records of work that ended longer than age ago, and tells how
	// many.
	Forget(ctx context.Context, age time.Duration, limit int) (int, error)
	// AddStats adds the state of the work to that of the inbox.
	AddStats(ctx context.Context, stats *inbox.Stats) error
}

// HandleExtended is [Inbox.Handle] for a handler with an extension, which extend returns.
func (i *Inbox[TX]) HandleExtended(name string, fn HandlerFunc[TX], cfg HandlerConfig, extend func(host *Host[TX]) Extension) (*Handler[TX], error) {
	h, err := i.newHandler(name, fn, cfg)
	if err != nil {
		return nil, handlerError(name, err)
	}
	h.extension = extend(&Host[TX]{h})
	return i.add(name, h)
}

// Host is a handler as its [Extension] sees it. It is safe for concurrent use.
type Host[TX any] struct{ h *Handler[TX] }

// Name returns the consumer's name.
func (e *Host[TX]) Name() string { return e.h.name }

// Config returns the configuration of the handler, with its defaults.
func (e *Host[TX]) Config() HandlerConfig { return e.h.cfg }

// PollInterval returns Config.PollInterval of the inbox.
func (e *Host[TX]) PollInterval() time.Duration { return e.h.inbox.cfg.PollInterval }

// Logger returns the logger of the handler.
func (e *Host[TX]) Logger() *slog.Logger { return e.h.log }

// Register returns the store's number for the consumer, which it makes known there if need be.
func (e *Host[TX]) Register(ctx context.Context) (consumer int, err error) {
	if err := e.h.register(ctx); err != nil {
		return 0, err
	}
	return e.h.consumer(), nil
}

// Consumer returns the store's number for the consumer, which is registered.
func (e *Host[TX]) Consumer() int { return e.h.consumer() }

// Operation bounds a call of the store that is to be finished even if ctx ends.
func (e *Host[TX]) Operation(ctx context.Context) (context.Context, context.CancelFunc) {
	return e.h.operation(ctx)
}

// RunIsolated runs f in a goroutine of its own and waits for it. A panic becomes a [PanicError], and a
// Goexit becomes [ErrGoexit].
func (e *Host[TX]) RunIsolated(f func() error) error { return runIsolated(f) }

// NeedsRun says that the handler leaves work behind: if nobody has called [Inbox.Run], that is
// logged as an ERROR.
func (e *Host[TX]) NeedsRun(ctx context.Context) { e.h.inbox.reportNotRunning(ctx) }

// StoreFailed returns how long to leave the store alone after an error outside a [Task], the one
// after so many in a row. The handler asks the database again for all that it has cached.
func (e *Host[TX]) StoreFailed(err error, failures int) time.Duration {
	e.h.invalidateAfter(err)
	return e.FailureWait(failures)
}

// FailureWait returns how long to leave the store alone after so many failures in a row.
func (e *Host[TX]) FailureWait(failures int) time.Duration { return e.h.failureWait(failures) }

// Backoff returns a wait that is shortest at first, half of it at random, quadruples with each of
// so many failures, and is longest at most.
func (e *Host[TX]) Backoff(shortest, longest time.Duration, failures int) time.Duration {
	return e.h.inbox.backoff(shortest, longest, failures)
}

// Task returns the task under key of the extension.
func (e *Host[TX]) Task(key uuid.UUID) *Task[TX] {
	return &Task[TX]{progress{ref: messageRef{e.h.name, key}}, e.h}
}

// Task is something that an extension does in the database, and repeats while the database is in
// trouble. It is not safe for concurrent use.
type Task[TX any] struct {
	progress progress
	h        *Handler[TX]
}

// Wait waits before the next try after an error of the database. It returns false at once when the
// task is not to be tried again: when ctx ended, or the database was in trouble for Config.MaxHold.
func (t *Task[TX]) Wait(ctx context.Context, err error) bool {
	return t.h.waitForDatabase(ctx, &t.progress, err)
}

// Transaction is a transaction of an extension.
type Transaction[TX any] struct {
	// Event and Metadata are the message that the [Work] of Run has. Events that Run writes are
	// children of Event.ID.
	Event    transport.Event
	Metadata map[string]string
	// Apply locks what the transaction is about, runs fn in it and commits. It returns false,
	// and does not run fn, if there is nothing to lock any more. It takes the isolation and the
	// bounds from c.
	Apply func(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx TX) error) (bool, error)
	// Run is the work of the extension in the transaction.
	Run func(ctx context.Context, w *Work[TX]) error
}

// Outcome is how a [Transaction] ended.
type Outcome uint8

const (
	// TaskCommitted says that the transaction was committed.
	TaskCommitted Outcome = iota
	// TaskGone says that there was nothing to lock: somebody else has dealt with the task.
	TaskGone
	// TaskUnavailable says that nothing is known of the task since the database is in trouble, or
	// that the outcome of the COMMIT stayed unknown. No attempt is counted.
	TaskUnavailable
	// TaskFailed says that an attempt failed and counts.
	TaskFailed
	// TaskRejected says that the task fails and no repetition would help.
	TaskRejected
)

// Run runs tr beside the messages of the handler, again and again while the database is in trouble,
// for Config.MaxHold. What it began does not end with ctx. An error comes with the last three outcomes.
func (t *Task[TX]) Run(ctx context.Context, tr Transaction[TX]) (Outcome, error) {
	m := &taskRun[TX]{Task: t, tr: tr}
	err := t.h.retryLoop(ctx, &t.progress, m, m.begin(ctx))
	return m.outcome, err
}

// taskRun is the handling of a task.
type taskRun[TX any] struct {
	*Task[TX]

	tr      Transaction[TX]
	outcome Outcome
}

func (m *taskRun[TX]) begin(ctx context.Context) attempt {
	ctx = context.WithoutCancel(ctx)
	return m.h.runShared(ctx, func() attempt { return m.attempt(ctx) })
}

func (m *taskRun[TX]) settle(_ context.Context, a attempt) error {
	if a.verdict == inbox.Duplicate && !m.progress.commitUnknown {
		m.outcome = TaskGone
		return nil
	}
	m.h.inbox.outages.success(m.progress.ref)
	if m.h.inbox.outbox != nil {
		m.h.inbox.outbox.Committed()
	}
	return nil
}

func (m *taskRun[TX]) failed(ctx context.Context, a attempt, step nextStep) (again bool, err error) {
	switch step {
	case askAgain, retryUncounted:
		if m.Wait(ctx, a.err) {
			return true, nil
		}
		m.outcome = TaskUnavailable
	case makeDead:
		m.outcome = TaskRejected
	default:
		m.outcome = TaskFailed
	}
	return false, a.err
}

func (m *taskRun[TX]) attempt(ctx context.Context) attempt {
	h := m.h
	ctx, cancel := h.operation(ctx)
	defer cancel()
	a := attempt{verdict: inbox.Applied}
	a.err = runIsolated(func() error {
		done, err := m.tr.Apply(ctx, h.bounds(), func(ctx context.Context, tx TX) error {
			a.ran = true
			return m.work(ctx, tx)
		})
		if err == nil && !done {
			a.verdict = inbox.Duplicate
		}
		return err
	})
	a.overran = a.ran && ctx.Err() != nil
	return a
}

func (m *taskRun[TX]) work(ctx context.Context, tx TX) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = newPanic(v)
		}
	}()
	w := m.h.newWork(ctx, tx, &incoming{event: m.tr.Event, metadata: m.tr.Metadata})
	if err := m.tr.Run(ctx, w); err != nil {
		return err
	}
	if w.err != nil {
		return w.err
	}
	return w.flush(ctx)
}
