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

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/transport"
)

// InboxFixture is an empty inbox, for one test, and a table of effects beside it.
type InboxFixture[TX any] struct {
	Store consumer.Store[TX]
	// Effect adds a row with name to the table of effects, in tx. Nothing keeps
	// that table from having a name twice.
	Effect func(ctx context.Context, tx TX, name string) error
	// Effects returns the names in the table of effects as they are committed, in the
	// order in which they were added.
	Effects func(ctx context.Context) ([]string, error)
	// Begin has tx begun in the database and the claim made, if that is not so already. Nil: it always is.
	Begin func(ctx context.Context, tx TX) error
	// Break runs a statement in tx that fails, and returns its error.
	Break func(ctx context.Context, tx TX) error
	// ErrorsDoom tells that a failed statement keeps its transaction from being committed.
	ErrorsDoom bool
	// OneWriter tells that a handler's transaction makes every other one wait for its
	// end. What needs two at once is tested one after the other then, or not at all.
	OneWriter bool
}

// Consumer tests that a store keeps the contract of [consumer.Store]. open returns
// a new, empty inbox for each test; what it needs to close, it closes in
// t.Cleanup. The tests run in parallel. only limits them to groups of those names, as go test -v
// shows them, so that a store can be tested in many settings without all of them in each; defaults to all.
func Consumer[TX any](t *testing.T, open func(t *testing.T) InboxFixture[TX], only ...string) {
	t.Helper()
	runGroups(t, []group[inboxTest[TX]]{
		{"claim", claimTests[TX]()},
		{"race", raceTests[TX]()},
		{"group", groupTests[TX]()},
		{"order", keyTests[TX]()},
		{"park", parkTests[TX]()},
		{"take up", takeUpTests[TX]()},
		{"operator", messageOperatorTests[TX]()},
		{"window", windowTests[TX]()},
		{"history", historyTests[TX]()},
	}, only, func(t *testing.T, test inboxTest[TX]) {
		i := &inbox[TX]{rig: rig{t}, InboxFixture: open(t)}
		i.consumer = i.register("service/handler")
		test.run(i)
	})
}

type inboxTest[TX any] struct {
	fact string
	run  func(i *inbox[TX])
}

func (x inboxTest[TX]) named() string { return x.fact }

// inbox is a test and the inbox that it works on.
type inbox[TX any] struct {
	rig
	InboxFixture[TX]
	consumer int
}

// handler is what a store runs in a transaction.
type handler[TX any] = func(ctx context.Context, tx TX) error

var (
	errHandler = errors.New("error of a handler")
	levels     = []consumer.Isolation{consumer.ReadCommitted, consumer.RepeatableRead, consumer.Serializable}
)

func (i *inbox[TX]) register(name string) int {
	i.Helper()
	r, err := i.Store.Register(i.ctx(), name, 24*time.Hour)
	i.ok(err)
	return r.Consumer
}

// message returns a new message of key.
func message(key string) *consumer.Message {
	id := uuid.New()
	return &consumer.Message{
		ID: id, Topic: "topic", Key: key, Digest: transport.Digest(uuid.NewSHA1(id, []byte("content"))),
		Stamp:    time.Now().UTC().Truncate(time.Microsecond),
		Metadata: map[string]string{"name": "value"}, Payload: []byte("payload"),
	}
}

// otherContent returns m with other content under the same dispatch ID.
func otherContent(m *consumer.Message) *consumer.Message {
	other := *m
	other.Digest = transport.Digest(uuid.NewSHA1(m.ID, []byte("other content")))
	other.Payload = []byte("other payload")
	return &other
}

// claim returns the claim of a handler that wants no order.
func (i *inbox[TX]) claim(m *consumer.Message) consumer.Claim {
	return consumer.Claim{
		Consumer: i.consumer, ID: m.ID, Digest: m.Digest, Stamp: m.Stamp,
		IdleTimeout: patience, LockTimeout: patience,
	}
}

// ordered returns the claim of a handler that wants order.
func (i *inbox[TX]) ordered(m *consumer.Message) consumer.Claim {
	c := i.claim(m)
	c.Key, c.Message = m.Key, m
	return c
}

// effect returns a handler that adds name to the effects.
func (i *inbox[TX]) effect(name string) handler[TX] {
	return func(ctx context.Context, tx TX) error { return i.Effect(ctx, tx, name) }
}

// again repeats do while it meets conflicts with other transactions.
func (i *inbox[TX]) again(do func() error) error {
	for {
		err := do()
		if err == nil || i.Store.Classify(err) != consumer.Conflict || i.ctx().Err() != nil {
			return err
		}
	}
}

// apply applies a message with its ID as the effect, and returns the verdict.
func (i *inbox[TX]) apply(c consumer.Claim) consumer.Verdict {
	i.Helper()
	var v consumer.Verdict
	i.ok(i.again(func() (err error) {
		v, err = i.Store.Apply(i.ctx(), c, i.effect(c.ID.String()))
		return err
	}))
	return v
}

// expectVerdict applies a message and checks the verdict.
func (i *inbox[TX]) expectVerdict(c consumer.Claim, want consumer.Verdict) {
	i.Helper()
	if got := i.apply(c); got != want {
		i.Fatalf("verdict is %v, want %v", got, want)
	}
}

// expectEffects checks what is in the table of effects, in order.
func (i *inbox[TX]) expectEffects(want ...string) {
	i.Helper()
	got, err := i.Effects(i.ctx())
	i.ok(err)
	if !slices.Equal(got, want) {
		i.Fatalf("effects are %q, want %q", got, want)
	}
}

// expectClass checks what an error is said to mean, also when it is wrapped.
func (i *inbox[TX]) expectClass(err error, want consumer.ErrorClass) {
	i.Helper()
	for _, e := range []error{err, fmt.Errorf("wrapped: %w", err), errors.Join(errHandler, err)} {
		if got := i.Store.Classify(e); got != want {
			i.Fatalf("class of %q is %v, want %v", e, got, want)
		}
	}
}

// park parks a message and checks the verdict.
func (i *inbox[TX]) park(p consumer.Parking, want consumer.Verdict) {
	i.Helper()
	p.Consumer = i.consumer
	got, err := i.Store.ParkMessage(i.ctx(), p)
	i.ok(err)
	if got != want {
		i.Fatalf("verdict on parking is %v, want %v", got, want)
	}
}

// retrying parks messages in order, due now.
func (i *inbox[TX]) retrying(messages ...*consumer.Message) {
	i.Helper()
	for _, m := range messages {
		i.park(consumer.Parking{Message: m, State: consumer.Retrying, Ordered: true, Attempts: 1}, consumer.Applied)
	}
}

// following lets messages follow a parked one.
func (i *inbox[TX]) following(messages ...*consumer.Message) {
	i.Helper()
	for _, m := range messages {
		i.expectVerdict(i.ordered(m), consumer.Followed)
	}
}

// parked reads the parked message of an ID, or fails.
func (i *inbox[TX]) parked(m *consumer.Message) consumer.ParkedMessage {
	i.Helper()
	list := i.list(consumer.Filter{IDs: []uuid.UUID{m.ID}})
	if len(list) != 1 {
		i.Fatalf("%d parked messages have the ID, want 1", len(list))
	}
	return list[0]
}

func (i *inbox[TX]) list(f consumer.Filter) []consumer.ParkedMessage {
	i.Helper()
	list, err := i.Store.ListParkedMessages(i.ctx(), f)
	i.ok(err)
	return list
}

// expectParked checks the states of all parked messages, in order.
func (i *inbox[TX]) expectParked(want ...consumer.State) {
	i.Helper()
	var got []consumer.State
	for _, m := range i.list(consumer.Filter{}) {
		got = append(got, m.State)
	}
	if !slices.Equal(got, want) {
		i.Fatalf("parked messages are %v, want %v", got, want)
	}
}

// applyParked handles a parked message with its ID as the effect.
func (i *inbox[TX]) applyParked(seq int64) (done bool, err error) {
	return i.applyParkedAt(consumer.ReadCommitted, seq)
}

func (i *inbox[TX]) applyParkedAt(level consumer.Isolation, seq int64) (done bool, err error) {
	c := consumer.Claim{Consumer: i.consumer, Isolation: level, IdleTimeout: patience, LockTimeout: patience}
	err = i.again(func() (err error) {
		done, err = i.Store.ApplyParked(i.ctx(), c, seq, func(ctx context.Context, tx TX, m *consumer.ParkedMessage) error {
			return i.Effect(ctx, tx, m.ID.String())
		})
		return err
	})
	return done, err
}

// takeUp handles the parked message of an ID and checks whether it was handled.
func (i *inbox[TX]) takeUp(m *consumer.Message, want bool) {
	i.Helper()
	done, err := i.applyParked(i.parked(m).Seq)
	i.ok(err)
	if done != want {
		i.Fatalf("handling a parked message says %v, want %v", done, want)
	}
}

// drain handles what is due until nothing is.
func (i *inbox[TX]) drain() {
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

// forgetTo makes the consumer forget everything up to now, and returns that time.
func (i *inbox[TX]) forgetTo() time.Time {
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

// old returns a message from before what forgetTo forgets.
func old(key string) *consumer.Message {
	m := message(key)
	m.Stamp = m.Stamp.Add(-time.Hour)
	return m
}

// lasting returns a message from after what forgetTo forgets.
func lasting(key string) *consumer.Message {
	m := message(key)
	m.Stamp = m.Stamp.Add(time.Hour)
	return m
}

// inHandler is a handler that waits in its transaction.
type inHandler struct {
	finish chan error
	result <-chan error
}

// hold runs a handler that adds name to the effects and then waits for release. It
// returns when the handler has begun.
func (i *inbox[TX]) hold(name string, run func(fn handler[TX]) error) *inHandler {
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
func (i *inbox[TX]) holdApply(c consumer.Claim) *inHandler {
	i.Helper()
	return i.hold(c.ID.String(), func(fn handler[TX]) error {
		_, err := i.Store.Apply(i.ctx(), c, fn)
		return err
	})
}

// release lets a held handler return err, and returns what became of it.
func (i *inbox[TX]) release(h *inHandler, err error) error {
	i.Helper()
	h.finish <- err
	return i.result(h.result)
}
