package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	outboxstore "github.com/boxpair/boxpair/store/outbox"
)

// batches notes the sizes of the sets that a handler is given.
type batches struct {
	mu    sync.Mutex
	sizes []int
	gate  chan struct{} // what the first one waits for
}

// newBatchRig returns a rig whose handler takes sets of up to 8.
func newBatchRig(t *testing.T, s setup, fn func(ctx context.Context, b *consumer.Batch[*fakeTx], msgs []*message.Message) error) (*rig, *batches) {
	t.Helper()
	r := newRig(t, s)
	seen := &batches{gate: make(chan struct{})}
	var err error
	r.handler, err = r.inbox.HandleBatch("set", func(ctx context.Context, b *consumer.Batch[*fakeTx], msgs []*message.Message) error {
		seen.mu.Lock()
		first := len(seen.sizes) == 0
		seen.sizes = append(seen.sizes, len(msgs))
		seen.mu.Unlock()
		if first {
			<-seen.gate
		}
		for i, m := range msgs {
			if m.UUID != b.Work(i).Event().ID.String() || b.Len() != len(msgs) {
				t.Errorf("message %d of %d is %s, its work another's", i, b.Len(), m.UUID)
			}
			b.DB().Do("did " + m.UUID)
		}
		if fn == nil {
			return nil
		}
		return fn(ctx, b, msgs)
	}, consumer.HandlerConfig{Topic: "orders", Group: consumer.GroupConfig{Size: 8, Concurrency: 1}, Retry: consumer.RetryConfig{QuickAttempts: 1}, Order: consumer.OrderConfig{ByKey: true}})
	if err != nil {
		t.Fatal(err)
	}
	return r, seen
}

// consumeAll has an opener handled, and the messages as soon as it is.
func (b *batches) consumeAll(r *rig, msgs ...*message.Message) {
	r.t.Helper()
	var wg sync.WaitGroup
	for _, m := range append([]*message.Message{msg(opener)}, msgs...) {
		wg.Go(func() { r.consume(m) })
		synctest.Wait()
	}
	close(b.gate)
	wg.Wait()
}

func (b *batches) want(t *testing.T, sizes ...int) {
	t.Helper()
	if !slices.Equal(b.sizes, sizes) {
		t.Errorf("sets had %v messages, want %v", b.sizes, sizes)
	}
}

func TestBatchIsAllThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, seen := newBatchRig(t, setup{}, nil)
		seen.consumeAll(r, msgs(11)...)
		seen.want(t, 1, 8, 3)
		for n := range 11 {
			r.wantDone(number(n), 1)
		}
	})
}

func TestBadMessageOfABatchIsFoundByHalves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, seen := newBatchRig(t, setup{}, func(_ context.Context, _ *consumer.Batch[*fakeTx], msgs []*message.Message) error {
			for _, m := range msgs {
				if m.UUID == number(5).String() {
					return errHandler
				}
			}
			return nil
		})
		seen.consumeAll(r, msgs(8)...)
		seen.want(t, 1, 8, 4, 4, 2, 1, 1, 2)
		for n := range 8 {
			if n != 5 {
				r.wantDone(number(n), 1)
			}
		}
		r.wantStates(inbox.Retrying)
		if p := r.parked(); p.ID != number(5) || p.Attempts != 1 {
			t.Errorf("parked: %+v", p)
		}
		if err := r.inbox.RunOnce(t.Context()); err != nil { // a set of one; not due yet
			t.Error(err)
		}
	})
}

func TestLaterMessagesOfAKeyWaitBehindTheBadOneOfABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, seen := newBatchRig(t, setup{}, func(_ context.Context, _ *consumer.Batch[*fakeTx], msgs []*message.Message) error {
			for _, m := range msgs {
				if m.UUID == number(1).String() {
					return errHandler
				}
			}
			return nil
		})
		seen.consumeAll(r, keyed(0, "a"), keyed(1, "b"), keyed(2, "b"), keyed(3, "a"), keyed(4, "b"), keyed(5, "c"))
		r.wantStates(inbox.Retrying, inbox.Following, inbox.Following)
		for _, n := range []int{0, 3, 5} {
			r.wantDone(number(n), 1)
		}
	})
}

func TestPanicOfABatchIsOneFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, seen := newBatchRig(t, setup{}, func(_ context.Context, _ *consumer.Batch[*fakeTx], msgs []*message.Message) error {
			if msgs[len(msgs)-1].UUID == number(2).String() {
				panic("at the disco")
			}
			return nil
		})
		seen.consumeAll(r, msgs(3)...)
		r.wantStates(inbox.Retrying)
		r.wantDone(number(0), 1)
		r.wantDone(number(1), 1)
	})
}

func TestEventsOfABatchAreChildrenOfTheirMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, outbox := withOutbox(t)
		r, seen := newBatchRig(t, setup{store: store, outbox: outbox}, func(_ context.Context, b *consumer.Batch[*fakeTx], msgs []*message.Message) error {
			for i := range msgs {
				if _, err := b.Work(i).Write(t.Context(), producer.Event{Topic: "reserved"}); err != nil {
					return err
				}
			}
			return nil
		})
		seen.consumeAll(r, msgs(3)...)
		var got []string
		for _, e := range store.written() {
			got = append(got, e.CorrelationID)
		}
		slices.Sort(got)
		want := []string{"conversation", "conversation", "conversation", "conversation"}
		if !slices.Equal(got, want) {
			t.Errorf("events of %q", got)
		}
	})
}

func TestGroupConfigIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	for name, cfg := range map[string]consumer.HandlerConfig{
		"Group.Size: -1":                       {Group: consumer.GroupConfig{Size: -1}},
		"Group.Size: is needed for Group.Wait": {Group: consumer.GroupConfig{Wait: 1}},
		"Group.Size: is needed":                {Group: consumer.GroupConfig{Concurrency: 2}},
		"Group.Wait: 1m0s is not shorter":      {Group: consumer.GroupConfig{Size: 2, Wait: 60e9}},
		"Group.Concurrency: -1":                {Group: consumer.GroupConfig{Size: 2, Concurrency: -1}},
	} {
		_, err := r.inbox.Handle(name, func(context.Context, *work, *message.Message) error { return nil }, cfg)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	if _, err := r.inbox.HandleBatch("set", nil, consumer.HandlerConfig{}); err == nil || !strings.Contains(err.Error(), "function is nil") {
		t.Errorf("error is %v", err)
	}
}

// TestEventOfABatchIsPublishedInTheContextOfItsMessage: in the batch's own context an event would be
// the child of no message, and must neither be lost nor be committed without the batch.
func TestEventOfABatchIsPublishedInTheContextOfItsMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, outbox := withOutbox(t)
		publisher, err := outbox.Publisher(producer.PublisherConfig{NoKey: true, OwnTransaction: true})
		if err != nil {
			t.Fatal(err)
		}
		r, seen := newBatchRig(t, setup{store: store, outbox: outbox}, func(ctx context.Context, b *consumer.Batch[*fakeTx], msgs []*message.Message) error {
			if b.Len() == 2 {
				err := publisher.Publish("out", message.NewMessageWithContext(ctx, "m", nil))
				if !errors.Is(err, producer.ErrNoTransaction) || !strings.Contains(err.Error(), "in a batch") {
					t.Errorf("in the context of the batch: %v", err)
				}
				return nil // swallowed
			}
			events := make([]*message.Message, len(msgs))
			for i, m := range msgs {
				events[i] = message.NewMessageWithContext(m.Context(), "m", nil)
			}
			return publisher.Publish("out", events...)
		})
		seen.consumeAll(r, msgs(2)...)
		seen.want(t, 1, 2, 1, 1)
		written := store.written()
		if len(written) != 3 {
			t.Fatalf("%d events were written, want 3", len(written))
		}
		for n := range 2 {
			want := idgen.Child("stock/set", number(n), 0)
			if !slices.ContainsFunc(written, func(e outboxstore.Record) bool { return e.ID == want }) {
				t.Errorf("message %d has no event", n)
			}
		}
	})
}

// TestEventsOfABatchAreWrittenTogetherOrForbidItsCommit: the second of two messages that are published
// in one call is not valid, and the handler ignores the error.
func TestEventsOfABatchAreWrittenTogetherOrForbidItsCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, outbox := withOutbox(t)
		publisher, err := outbox.Publisher(producer.PublisherConfig{NoKey: true})
		if err != nil {
			t.Fatal(err)
		}
		r, seen := newBatchRig(t, setup{store: store, outbox: outbox}, func(_ context.Context, b *consumer.Batch[*fakeTx], msgs []*message.Message) error {
			if b.Len() == 2 {
				bad := message.NewMessageWithContext(msgs[1].Context(), "m", nil)
				bad.Metadata["header"] = strings.Repeat("x", 40<<10) // more than Config.MaxHeaders
				if err := publisher.Publish("out", message.NewMessageWithContext(msgs[0].Context(), "m", nil), bad); err == nil {
					t.Error("the second event was valid")
				}
			}
			return nil // swallowed
		})
		seen.consumeAll(r, msgs(2)...)
		seen.want(t, 1, 2, 1, 1)
		if n := len(store.written()); n > 0 {
			t.Errorf("%d events were written", n)
		}
	})
}
