package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// Extension does work that transactions of a handler leave behind, like the calls of package
// effects. [Inbox.Run] runs the extension of each handler. Extension is for packages of this
// library and may change with any release.
type Extension interface {
	// Run works until ctx ends, and then waits for work in progress.
	Run(ctx context.Context)
	// RunOnce does all due work, one piece after another, until no work is due or a piece was done
	// twice.
	RunOnce(ctx context.Context) error
	// Wake tells that work may be due. Wake does not block.
	Wake()
	// Forget removes at most limit records of work that ended longer than age ago, and returns the
	// number of removed records.
	Forget(ctx context.Context, age time.Duration, limit int) (int, error)
	// AddStats adds the state of the work to the state of the inbox.
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

// Host is a handler in the view of its [Extension]. A Host is safe for concurrent use.
type Host[TX any] struct{ h *Handler[TX] }

// Name returns the consumer's name.
func (e *Host[TX]) Name() string { return e.h.name }

// Config returns the configuration of the handler, with its defaults.
func (e *Host[TX]) Config() HandlerConfig { return e.h.cfg }

// PollInterval returns Config.PollInterval of the inbox.
func (e *Host[TX]) PollInterval() time.Duration { return e.h.inbox.cfg.PollInterval }

// Logger returns the logger of the handler.
func (e *Host[TX]) Logger() *slog.Logger { return e.h.log }

// Register registers the consumer with the store, if need be, and returns the consumer's number in
// the store.
func (e *Host[TX]) Register(ctx context.Context) (consumer int, err error) {
	if err := e.h.registry.register(ctx); err != nil {
		return 0, err
	}
	return e.h.registry.consumer(), nil
}

// Consumer returns the consumer's number in the store. The consumer must be registered.
func (e *Host[TX]) Consumer() int { return e.h.registry.consumer() }

// Operation returns a context for a store call that must finish even if ctx ends. The context ends
// after HandlerConfig.Timeout.
func (e *Host[TX]) Operation(ctx context.Context) (context.Context, context.CancelFunc) {
	return e.h.operation(ctx)
}

// RunIsolated runs f in a separate goroutine and waits for f. A panic becomes a [PanicError], and a
// Goexit becomes [ErrGoexit].
func (e *Host[TX]) RunIsolated(f func() error) error { return runIsolated(f) }

// NeedsRun tells that the handler leaves work to [Inbox.Run], and logs an ERROR if Run was never
// called; see Config.RunElsewhere.
func (e *Host[TX]) NeedsRun(ctx context.Context) { e.h.inbox.reportNotRunning(ctx) }

// StoreFailed takes an error of the store outside a [Task], and returns the wait before the next
// call after the given number of failures in a row. Unless the error is a conflict, the handler
// drops its cached state of the database.
func (e *Host[TX]) StoreFailed(err error, failures int) time.Duration {
	e.h.invalidateAfter(err)
	return e.FailureWait(failures)
}

// FailureWait returns the wait after the given number of failures in a row.
func (e *Host[TX]) FailureWait(failures int) time.Duration { return e.h.retries.failureWait(failures) }

// Backoff returns the wait after the given number of failures: shortest, quadrupled with each
// failure, up to longest, and half of it at random.
func (e *Host[TX]) Backoff(shortest, longest time.Duration, failures int) time.Duration {
	return e.h.inbox.backoff(shortest, longest, failures)
}

// Paused tells whether the consumer is paused. No work must be begun then.
func (e *Host[TX]) Paused(ctx context.Context) bool { return e.h.permits.isPaused(ctx) }

// Task returns a task. Errors and successes of the database count for key.
func (e *Host[TX]) Task(key uuid.UUID) *Task[TX] {
	return &Task[TX]{progress{ref: messageRef{e.h.name, key}}, e.h}
}

// Task is a piece of work of an extension in the database, repeated after errors of the database. A
// Task is not safe for concurrent use.
type Task[TX any] struct {
	progress progress
	h        *Handler[TX]
}

// Wait waits before the next try after an error of the database. It returns false without a next
// try: ctx ended, or Config.MaxHold is over.
func (t *Task[TX]) Wait(ctx context.Context, err error) bool {
	return t.h.waitForDatabase(ctx, &t.progress, err)
}

// Transaction is a transaction of an extension.
type Transaction[TX any] struct {
	// Event and Metadata are the message of the [Work] for Run. Events written by Run are children
	// of Event.ID.
	Event    transport.Event
	Metadata map[string]string
	// Apply begins a transaction with the isolation and the bounds of c, locks the row of the task,
	// runs fn and commits. Apply returns false without running fn if the row is gone or belongs to
	// another process.
	Apply func(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx TX) error) (bool, error)
	// Run is the work of the extension in the transaction.
	Run func(ctx context.Context, w *Work[TX]) error
}

// Outcome is how a [Transaction] ended.
type Outcome uint8

const (
	// TaskCommitted says that the transaction was committed.
	TaskCommitted Outcome = iota
	// TaskGone says that Apply returned false.
	TaskGone
	// TaskUnavailable says that the database failed for Config.MaxHold, or that the outcome of the
	// COMMIT stayed unknown. No attempt counts.
	TaskUnavailable
	// TaskFailed says that an attempt failed and counts.
	TaskFailed
	// TaskRejected says that an attempt failed and counts, and that no further attempt could succeed.
	TaskRejected
)

// Run runs tr beside the messages of the handler. After errors of the database, Run repeats tr for
// Config.MaxHold. The end of ctx does not cut a transaction short. With TaskUnavailable, TaskFailed
// and TaskRejected, Run returns the error.
func (t *Task[TX]) Run(ctx context.Context, tr Transaction[TX]) (Outcome, error) {
	m := &taskRun[TX]{Task: t, tr: tr}
	err := t.h.retryLoop(ctx, &t.progress, m, m.begin(ctx))
	return m.outcome, err
}

// taskRun handles a task.
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
	m.h.succeeded(m.progress.ref)
	if m.h.inbox.outbox != nil {
		m.h.inbox.outbox.Committed()
	}
	return nil
}

func (m *taskRun[TX]) attrs(args ...any) []any {
	return append([]any{"effect_key", m.progress.ref.id}, args...)
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
	defer w.end()
	if err := m.tr.Run(w.msg.Context(), w); err != nil { //nolint:contextcheck // within ctx
		return err
	}
	if err := w.failed(); err != nil {
		return err
	}
	return w.flush(ctx)
}
