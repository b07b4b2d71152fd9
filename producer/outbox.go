package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/producer/internal/field"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// Config configures an [Outbox].
type Config struct {
	// Name is the producer's name, a part of every dispatch ID: two services may have a source
	// "order-42", and renaming a producer renames its events. Required; at most 255 bytes.
	Name string `yaml:"name" env:"NAME"`

	// LockKeys makes every write lock the keys of its events until the end of the transaction:
	// writers of one key take turns. Without LockKeys, the caller serialises writers of a key,
	// usually by a row lock on the aggregate before the write. LockKeys is not for transactions
	// that write thousands of keys: on PostgreSQL, each locked key takes a place in the server's
	// lock table, whose max_locks_per_transaction × max_connections places, 6,400 by default, are
	// shared by all transactions. Defaults to false.
	LockKeys bool `yaml:"lock_keys" env:"LOCK_KEYS"`

	// ResendFor is how long after its stamp (its creation, or its due time) an event may be sent
	// again. The end of the time travels with every event, and consumers must remember dispatch IDs
	// for longer. After the time, an operator redrives or replays the event only by force. Keep
	// ResendFor above [JanitorConfig].Retention: otherwise some retained events cannot be replayed.
	// Rounded to seconds. Defaults to 10 days; at least 1 second, at most 10 years.
	ResendFor time.Duration `yaml:"resend_for" env:"RESEND_FOR"`

	// MaxPayload is how many bytes a payload may have. Defaults to 4 MiB.
	MaxPayload int `yaml:"max_payload" env:"MAX_PAYLOAD"`
	// MaxHeaders is how many bytes the headers of an event may have, names and values together.
	// Defaults to 32 KiB; at most 96 KiB, since RabbitMQ closes the connection on more than 128 KiB
	// of properties.
	MaxHeaders int `yaml:"max_headers" env:"MAX_HEADERS"`

	// MaxTransactAttempts is how often [Outbox.Transact] runs a conflicting transaction. Defaults
	// to 10.
	MaxTransactAttempts int `yaml:"max_transact_attempts" env:"MAX_TRANSACT_ATTEMPTS"`
	// NotifyInterval is the least time between two wake-ups of relays in other processes by
	// [Outbox.Run], on average: up to 20 wake-ups are sent ahead of their time. Defaults to 5 ms.
	NotifyInterval time.Duration `yaml:"notify_interval" env:"NOTIFY_INTERVAL"`

	// Logger receives the actions of operators, and errors. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

const (
	maxReason        = 1 << 10
	maxTraceState    = 512
	maxHeaderCount   = 1024 // so RabbitMQ's properties also have room for the lengths
	maxHeadersCeil   = 96 << 10
	defaultPayload   = 4 << 20
	defaultHeaders   = 32 << 10
	defaultTransacts = 10
	defaultResend    = 10 * 24 * time.Hour
	maxResend        = 10 * 365 * 24 * time.Hour
	defaultNotify    = 5 * time.Millisecond
	notifyAhead      = 20 // wake-ups that may be sent ahead of their time
	notifyTimeout    = 5 * time.Second
	transactBackoff  = 2 * time.Millisecond
)

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if err := field.Text("Name", c.Name, 1); err != nil {
		errs = append(errs, err)
	}
	for _, f := range []struct {
		name  string
		value *int
		def   int
		max   int
	}{
		{"MaxPayload", &c.MaxPayload, defaultPayload, 1 << 30},
		{"MaxHeaders", &c.MaxHeaders, defaultHeaders, maxHeadersCeil},
		{"MaxTransactAttempts", &c.MaxTransactAttempts, defaultTransacts, 1 << 20},
	} {
		switch {
		case *f.value == 0:
			*f.value = f.def
		case *f.value < 0 || *f.value > f.max:
			errs = append(errs, fmt.Errorf("%s: %d is not between 1 and %d", f.name, *f.value, f.max))
		}
	}
	switch {
	case c.ResendFor == 0:
		c.ResendFor = defaultResend
	case c.ResendFor < time.Second || c.ResendFor > maxResend:
		errs = append(errs, fmt.Errorf("ResendFor: %v is not between 1 second and 10 years", c.ResendFor))
	}
	switch {
	case c.NotifyInterval == 0:
		c.NotifyInterval = defaultNotify
	case c.NotifyInterval < 0:
		errs = append(errs, fmt.Errorf("NotifyInterval: %v is negative", c.NotifyInterval))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// Outbox is where a producer writes events. TX is the type of a transaction of the store. An Outbox
// is safe for concurrent use; its writers are not.
type Outbox[TX any] struct {
	store outbox.Store[TX]
	// commits is store if it is a CommitStore, or nil.
	commits outbox.CommitStore[TX]
	cfg     Config
	id      string        // unique among all outboxes, in any process
	local   wakeup.Signal // wakes relays in this process
	remote  wakeup.Signal // wakes relays in other processes
}

// New returns an outbox over store, without I/O.
func New[TX any](store outbox.Store[TX], cfg Config) (*Outbox[TX], error) {
	cfg, err := cfg.withDefaults()
	if store == nil {
		err = errors.Join(err, errors.New("store is nil"))
	}
	if err != nil {
		return nil, fmt.Errorf("producer config: %w", err)
	}
	commits, _ := store.(outbox.CommitStore[TX])
	return &Outbox[TX]{store: store, commits: commits, cfg: cfg, id: uuid.NewString()}, nil
}

// Name returns the producer's name.
func (o *Outbox[TX]) Name() string { return o.cfg.Name }

// Tx returns the writer of tx, a transaction of the caller. A transaction has one writer: pass the
// writer to all code that writes events in the transaction. Writes by a second writer are refused
// with [outbox.ErrSecondWriter]. After the commit, call [Outbox.Committed]; otherwise relays find
// the events at their next poll.
func (o *Outbox[TX]) Tx(tx TX) *Writer[TX] {
	return o.newWriter(tx)
}

// Handling returns the writer of tx for a consumer that handles cause. An event without an identity
// gets a child ID of cause. An event without a correlation ID or a trace context takes it from
// cause. The caller calls [Writer.Flush] before the commit and [Outbox.Committed] after the commit.
func (o *Outbox[TX]) Handling(tx TX, consumer string, cause transport.Event) *Writer[TX] {
	w := o.newWriter(tx)
	w.consumer, w.cause = consumer, &cause
	w.flushes = true
	return w
}

// HandlingTogether is [Outbox.Handling] for a consumer that handles several causes in one
// transaction: the returned function makes the writer of each cause. All these writers count as the
// one writer of tx. Grouping does not change the dispatch IDs. [FlushTogether] flushes the writers.
func (o *Outbox[TX]) HandlingTogether(tx TX, consumer string) func(cause transport.Event) *Writer[TX] {
	first := o.newWriter(tx)
	return func(cause transport.Event) *Writer[TX] {
		w := o.Handling(tx, consumer, cause)
		// One queue keeps the order of events over all writers.
		w.token, w.queued = first.token, first.queued
		return w
	}
}

// Transact runs fn in a new transaction and commits if fn returns nil. The context that fn gets is
// within the transaction, for publishers ([Outbox.Publisher]). Events of [Writer.Write] are written
// together with the commit by an [outbox.CommitStore]. A transaction that conflicts with another
// transaction is run again from the start, with a new writer, after a short random wait, at most
// Config.MaxTransactAttempts times. So fn must not have effects outside of the transaction. fn must
// not call Transact: callers that hold every connection of a pool would wait for each other. An
// error that wraps [outbox.ErrCommitUnknown] means that the transaction may have been committed;
// running fn again is safe for its events, and for its changes if the changes are idempotent.
func (o *Outbox[TX]) Transact(ctx context.Context, fn func(ctx context.Context, w *Writer[TX]) error) error {
	for attempt := 1; ; attempt++ {
		wrote, err := o.transactOnce(ctx, fn)
		if err == nil || errors.Is(err, outbox.ErrCommitUnknown) {
			switch {
			case wrote.None():
			case err != nil: // the commit may still happen
				o.Committed()
			default:
				o.committed(wrote)
			}
			return err
		}
		if !o.store.Retryable(err) || attempt == o.cfg.MaxTransactAttempts {
			return err
		}
		if err := pace.Sleep(ctx, rand.N(transactBackoff<<min(attempt, 7))); err != nil {
			return err
		}
	}
}

// transactOnce runs fn in a transaction and commits. It returns a wake-up for the written events.
func (o *Outbox[TX]) transactOnce(ctx context.Context, fn func(ctx context.Context, w *Writer[TX]) error) (wrote wakeup.Wakeup, err error) {
	if err := fault.Hit(ctx, fault.BeforeBegin); err != nil {
		return wakeup.Wakeup{}, err
	}
	ctx, seen, err := observe.Begin(ctx)
	if err != nil {
		return wakeup.Wakeup{}, err
	}
	var late []outbox.Record
	err = o.store.Transact(ctx, func(ctx context.Context, tx TX) error {
		w := o.newWriter(tx)
		w.flushes = true
		defer func() { late = w.late }()
		defer w.End()
		if err := fn(w.Context(ctx), w); err != nil {
			return err
		}
		if err := fault.Hit(ctx, fault.BeforeEvent); err != nil {
			return err
		}
		if err := w.FlushAtCommit(ctx); err != nil {
			return err
		}
		wrote = w.wakes
		return fault.Hit(ctx, fault.BeforeCommit)
	})
	if err == nil && fault.Hit(ctx, fault.Committed) != nil {
		err = fmt.Errorf("commit: %w", outbox.ErrCommitUnknown)
	}
	return wrote, seen.Ended(named(err, late))
}

// Committed wakes relays: in this process at once, in other processes through [Outbox.Run].
// Committed never blocks. After [Outbox.Transact], no call is needed.
func (o *Outbox[TX]) Committed() { o.committed(wakeup.All) }

func (o *Outbox[TX]) committed(n wakeup.Wakeup) {
	if fault.Reach(fault.BeforeWakeup) != nil {
		return
	}
	if others := o.local.Send(n); !others.None() {
		o.remote.Send(others)
	}
}

// changed wakes relays for an operator's change of events, also from processes that do not call
// [Outbox.Run]. A relay that no signal reaches learns of the change with the next renewal of its
// leases.
func (o *Outbox[TX]) changed(ctx context.Context) {
	n := o.local.Send(wakeup.Changed)
	if err := o.notify(context.WithoutCancel(ctx), n); err != nil && !errors.Is(err, outbox.ErrNoSignal) {
		o.cfg.Logger.WarnContext(ctx, "waking relays for a change failed, they learn of it within seconds", "error", err)
	}
}

// Run tells relays in other processes about commits in shards that no relay of this process owns. It
// does so on average once per Config.NotifyInterval at most, until ctx ends, and returns nil. Run is optional: without Run, or on a store without a
// signal between processes, relays in other processes poll.
func (o *Outbox[TX]) Run(ctx context.Context) error {
	woken, stop := o.remote.Subscribe(nil)
	defer stop()
	var paced time.Time // up to which wake-ups have used up their time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-woken.Woken:
		}
		now := time.Now()
		if paced.Before(now) {
			paced = now
		}
		if early := paced.Sub(now) - notifyAhead*o.cfg.NotifyInterval; early > 0 && pace.Sleep(ctx, early) != nil {
			return nil
		}
		n := woken.Take()
		if n.None() {
			continue // the last wake-up included the commit
		}
		paced = paced.Add(o.cfg.NotifyInterval)
		if err := o.notify(ctx, n); errors.Is(err, outbox.ErrNoSignal) {
			<-ctx.Done()
			return nil
		} else if err != nil && ctx.Err() == nil {
			o.cfg.Logger.WarnContext(ctx, "waking relays failed, they poll", "error", err)
		}
	}
}

func (o *Outbox[TX]) notify(ctx context.Context, n wakeup.Wakeup) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	return o.store.Notify(ctx, n.Text(o.id))
}

// RelaySource returns the parts of an outbox that package relay needs in its process. Applications
// do not need RelaySource.
func (o *Outbox[TX]) RelaySource() wakeup.Source {
	return wakeup.Source{Store: o.store, Logger: o.cfg.Logger, Commits: &o.local, Others: &o.remote, ID: o.id}
}

func (o *Outbox[TX]) newWriter(tx TX) *Writer[TX] {
	w := &Writer[TX]{outbox: o, tx: tx, token: uuid.New(), queued: &queue{}}
	w.within.Writer = w
	return w
}
