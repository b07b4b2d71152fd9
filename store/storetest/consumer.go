package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// InboxFixture is an empty inbox for one test, with a table of effects in the same database.
type InboxFixture[TX any] struct {
	Store inbox.Store[TX]
	// Effect adds a row with name to the table of effects, in tx. The table may have a name twice.
	Effect func(ctx context.Context, tx TX, name string) error
	// Effects returns the committed names in the table of effects, in the order of insertion.
	Effects func(ctx context.Context) ([]string, error)
	// Begin makes the store begin tx in the database and make the claim, if the store delays both.
	// It may be nil.
	Begin func(ctx context.Context, tx TX) error
	// Break runs a statement in tx that fails, and returns its error.
	Break func(ctx context.Context, tx TX) error
	// ErrorsDoom tells that a failed statement keeps its transaction from being committed.
	ErrorsDoom bool
	// OneWriter tells that every other transaction waits for the end of a handler's transaction.
	// Tests with two concurrent transactions then run them one after the other, or are left out.
	OneWriter bool
	// User is the database's user, as in [ControlFixture].
	User string
}

// Consumer tests that a store keeps the contract of [inbox.Store]. open returns a new, empty inbox
// for each test, and closes it in t.Cleanup. The tests run in parallel. only has the names of
// groups to run, as go test -v shows them, for a store that is tested in many settings. Defaults to
// all groups.
func Consumer[TX any](t *testing.T, open func(t *testing.T) InboxFixture[TX], only ...string) {
	t.Helper()
	runGroups(t, []group[inboxTest[TX]]{
		{"claim", claimTests[TX]()},
		{"race", raceTests[TX]()},
		{"group", groupTests[TX]()},
		{"order", keyTests[TX]()},
		{"park", parkTests[TX]()},
		{"fresh", freshTests[TX]()},
		{"take up", takeUpTests[TX]()},
		{"operator", messageOperatorTests[TX]()},
		{"search", messageSearchTests[TX]()},
		{"window", windowTests[TX]()},
		{"reports", handlerReportTests[TX]()},
		{"history", historyTests[TX]()},
		{"control", inboxControlTests[TX]()},
	}, only, func(t *testing.T, test inboxTest[TX]) {
		i := &inboxRig[TX]{rig: rig{t}, InboxFixture: open(t)}
		i.consumer = i.register("service/handler")
		test.run(i)
	})
}

type inboxTest[TX any] struct {
	fact string
	run  func(i *inboxRig[TX])
}

func (x inboxTest[TX]) named() string { return x.fact }

// inboxRig is a test with its inbox.
type inboxRig[TX any] struct {
	rig
	InboxFixture[TX]
	consumer int
}

// handler is a function that a store runs in a transaction.
type handler[TX any] = func(ctx context.Context, tx TX) error

var (
	errHandler = errors.New("error of a handler")
	levels     = []inbox.Isolation{inbox.ReadCommitted, inbox.RepeatableRead, inbox.Serializable}
)

func (i *inboxRig[TX]) register(name string) int {
	i.Helper()
	r, err := i.Store.Register(i.ctx(), name, 24*time.Hour)
	i.ok(err)
	return r.Consumer
}

// message returns a new message of key.
func message(key string) *inbox.Message {
	id := uuid.New()
	return &inbox.Message{
		ID: id, Topic: "topic", Key: key, Digest: transport.Digest(uuid.NewSHA1(id, []byte("content"))),
		Stamp:    time.Now().UTC().Truncate(time.Microsecond),
		Metadata: map[string]string{"name": "value"}, Payload: []byte("payload"),
	}
}

// otherContent returns m with other content under the same dispatch ID.
func otherContent(m *inbox.Message) *inbox.Message {
	other := *m
	other.Digest = transport.Digest(uuid.NewSHA1(m.ID, []byte("other content")))
	other.Payload = []byte("other payload")
	return &other
}

// claim returns the claim of a handler without order.
func (i *inboxRig[TX]) claim(m *inbox.Message) inbox.Claim {
	return inbox.Claim{
		Consumer: i.consumer, ID: m.ID, Digest: m.Digest, Stamp: m.Stamp,
		IdleTimeout: patience, LockTimeout: patience,
	}
}

// ordered returns the claim of a handler with order.
func (i *inboxRig[TX]) ordered(m *inbox.Message) inbox.Claim {
	c := i.claim(m)
	c.Key, c.Message = m.Key, m
	return c
}

// effect returns a handler that adds name to the effects.
func (i *inboxRig[TX]) effect(name string) handler[TX] {
	return func(ctx context.Context, tx TX) error { return i.Effect(ctx, tx, name) }
}

// again repeats do while do meets conflicts with other transactions.
func (i *inboxRig[TX]) again(do func() error) error {
	for {
		err := do()
		if err == nil || i.Store.Classify(err) != inbox.Conflict || i.ctx().Err() != nil {
			return err
		}
	}
}

// apply applies a message with its ID as the effect, and returns the verdict.
func (i *inboxRig[TX]) apply(c inbox.Claim) inbox.Verdict {
	i.Helper()
	var v inbox.Verdict
	i.ok(i.again(func() (err error) {
		v, err = i.Store.Apply(i.ctx(), c, i.effect(c.ID.String()))
		return err
	}))
	return v
}

// expectVerdict applies a message and checks the verdict.
func (i *inboxRig[TX]) expectVerdict(c inbox.Claim, want inbox.Verdict) {
	i.Helper()
	if got := i.apply(c); got != want {
		i.Fatalf("verdict is %v, want %v", got, want)
	}
}

// expectEffects checks the names in the table of effects, in order.
func (i *inboxRig[TX]) expectEffects(want ...string) {
	i.Helper()
	got, err := i.Effects(i.ctx())
	i.ok(err)
	if !slices.Equal(got, want) {
		i.Fatalf("effects are %q, want %q", got, want)
	}
}

// expectClass checks the class of an error, bare and wrapped.
func (i *inboxRig[TX]) expectClass(err error, want inbox.ErrorClass) {
	i.Helper()
	for _, e := range []error{err, fmt.Errorf("wrapped: %w", err), errors.Join(errHandler, err)} {
		if got := i.Store.Classify(e); got != want {
			i.Fatalf("class of %q is %v, want %v", e, got, want)
		}
	}
}

// park parks a message and checks the verdict.
func (i *inboxRig[TX]) park(p inbox.Parking, want inbox.Verdict) {
	i.Helper()
	p.Consumer = i.consumer
	got, err := i.Store.ParkMessage(i.ctx(), p)
	i.ok(err)
	if got != want {
		i.Fatalf("verdict on parking is %v, want %v", got, want)
	}
}

// retrying parks messages in order, due now.
func (i *inboxRig[TX]) retrying(messages ...*inbox.Message) {
	i.Helper()
	for _, m := range messages {
		i.park(inbox.Parking{Message: m, State: inbox.Retrying, Ordered: true, Attempts: 1}, inbox.Applied)
	}
}

// following makes messages follow a parked message.
func (i *inboxRig[TX]) following(messages ...*inbox.Message) {
	i.Helper()
	for _, m := range messages {
		i.expectVerdict(i.ordered(m), inbox.Followed)
	}
}

// parked reads the parked message of an ID, or fails.
func (i *inboxRig[TX]) parked(m *inbox.Message) inbox.Parked {
	i.Helper()
	list := i.list(inbox.Filter{IDs: []uuid.UUID{m.ID}})
	if len(list) != 1 {
		i.Fatalf("%d parked messages have the ID, want 1", len(list))
	}
	return list[0]
}

func (i *inboxRig[TX]) list(f inbox.Filter) []inbox.Parked {
	i.Helper()
	list, err := i.Store.ListParkedMessages(i.ctx(), f)
	i.ok(err)
	return list
}

// expectParked checks the states of all parked messages, in order.
func (i *inboxRig[TX]) expectParked(want ...inbox.State) {
	i.Helper()
	var got []inbox.State
	for _, m := range i.list(inbox.Filter{}) {
		got = append(got, m.State)
	}
	if !slices.Equal(got, want) {
		i.Fatalf("parked messages are %v, want %v", got, want)
	}
}

// applyParked handles a parked message with its ID as the effect.
func (i *inboxRig[TX]) applyParked(seq int64) (done bool, err error) {
	return i.applyParkedAt(inbox.ReadCommitted, seq)
}

func (i *inboxRig[TX]) applyParkedAt(level inbox.Isolation, seq int64) (done bool, err error) {
	c := inbox.Claim{Consumer: i.consumer, Isolation: level, IdleTimeout: patience, LockTimeout: patience}
	err = i.again(func() (err error) {
		done, err = i.Store.ApplyParked(i.ctx(), c, seq, func(ctx context.Context, tx TX, m *inbox.Parked) error {
			return i.Effect(ctx, tx, m.ID.String())
		})
		return err
	})
	return done, err
}

// takeUp handles the parked message of an ID and checks whether it was handled.
func (i *inboxRig[TX]) takeUp(m *inbox.Message, want bool) {
	i.Helper()
	done, err := i.applyParked(i.parked(m).Seq)
	i.ok(err)
	if done != want {
		i.Fatalf("handling a parked message says %v, want %v", done, want)
	}
}

// drain handles due messages until no message is due.
func (i *inboxRig[TX]) drain() {
	i.Helper()
	for {
		seqs, _, err := i.Store.DueMessages(i.ctx(), i.consumer, 10)
		i.ok(err)
		if len(seqs) == 0 {
			return
		}
		for _, seq := range seqs {
			_, err := i.applyParked(seq)
			i.ok(err)
		}
	}
}

// forgetTo makes the consumer forget all IDs up to now, and returns the forgotten time.
func (i *inboxRig[TX]) forgetTo() time.Time {
	i.Helper()
	var until time.Time
	i.eventually("advance", func() bool {
		var err error
		until, err = i.Store.AdvanceForgotten(i.ctx(), i.consumer, time.Microsecond, time.Hour)
		i.ok(err)
		return !until.IsZero()
	})
	return until
}

// old returns a message with a stamp before the time of forgetTo.
func old(key string) *inbox.Message {
	m := message(key)
	m.Stamp = m.Stamp.Add(-time.Hour)
	return m
}

// lasting returns a message with a stamp after the time of forgetTo.
func lasting(key string) *inbox.Message {
	m := message(key)
	m.Stamp = m.Stamp.Add(time.Hour)
	return m
}

// inHandler is a handler that waits in its transaction.
type inHandler struct {
	finish chan error
	result <-chan error
}

// hold runs a handler that adds name to the effects and then waits for release. hold returns when
// the handler has begun.
func (i *inboxRig[TX]) hold(name string, run func(fn handler[TX]) error) *inHandler {
	i.Helper()
	begun := make(chan struct{})
	tell := sync.OnceFunc(func() { close(begun) }) // an optimistic claim may run a handler twice
	finish := make(chan error, 1)
	result := i.async(func() error {
		return run(func(ctx context.Context, tx TX) error {
			if i.Begin != nil {
				if err := i.Begin(ctx, tx); err != nil {
					return err
				}
			}
			if err := i.Effect(ctx, tx, name); err != nil {
				return err
			}
			tell()
			select {
			case err := <-finish:
				return err
			case <-i.ctx().Done():
				return i.ctx().Err()
			case <-time.After(patience):
				return errors.New("handler was not released")
			}
		})
	})
	select {
	case <-begun:
	case err := <-result:
		i.Fatalf("handler was not run: %v", err)
	case <-time.After(patience):
		i.Fatalf("handler has not begun within %v", patience)
	}
	return &inHandler{finish: finish, result: result}
}

// holdApply holds the handler of a claim.
func (i *inboxRig[TX]) holdApply(c inbox.Claim) *inHandler {
	i.Helper()
	return i.hold(c.ID.String(), func(fn handler[TX]) error {
		_, err := i.Store.Apply(i.ctx(), c, fn)
		return err
	})
}

// release lets a held handler return err, and returns the outcome.
func (i *inboxRig[TX]) release(h *inHandler, err error) error {
	i.Helper()
	h.finish <- err
	return i.result(h.result)
}
