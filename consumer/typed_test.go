package consumer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/schema"
)

type placedV1 struct {
	Item string `json:"item"`
}

type placedV2 struct {
	Items []string `json:"items"`
}

func newPlaced(t *testing.T) *schema.Type[placedV2] {
	t.Helper()
	typ, err := schema.New(schema.Config[placedV2]{
		Name: "order.placed", Version: 2,
		Validate: func(p placedV2) error {
			if len(p.Items) == 0 {
				return errors.New("no items")
			}
			return nil
		},
		Upcast: map[int]schema.Upcaster{
			1: schema.Up(func(old placedV1) (placedV2, error) { return placedV2{[]string{old.Item}}, nil }),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

// typedRig returns a rig whose handler has the effect "item <first item>".
func typedRig(t *testing.T) *rig {
	return newRig(t, setup{fn: consumer.Typed(newPlaced(t), func(_ context.Context, w *work, p placedV2) error {
		w.DB().Do("item " + p.Items[0])
		return nil
	})})
}

func typedEvent(n int, version int, payload string) transport.Event {
	return transport.Event{ID: event(n).ID, Type: "order.placed", SchemaVersion: version, ContentType: "application/json", Payload: []byte(payload)}
}

func TestTypedHandlerGetsTheCurrentVersionWhateverWasWritten(t *testing.T) {
	t.Parallel()
	r := typedRig(t)
	for n, e := range []transport.Event{
		typedEvent(1, 1, `{"item":"lamp"}`),
		typedEvent(2, 2, `{"items":["lamp"]}`),
		{ID: event(3).ID, Payload: []byte(`{"items":["lamp"]}`)}, // of a publisher that says nothing
	} {
		r.consume(e.Message())
		if got := r.store.done("item lamp"); got != n+1 {
			t.Errorf("effect was committed %d times after %d messages", got, n+1)
		}
	}
	r.wantStates()
}

func TestPayloadThatNeverCanBeReadIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	r := typedRig(t)
	other := typedEvent(4, 2, `{"items":["lamp"]}`)
	other.Type = "order.cancelled"
	for _, e := range []transport.Event{
		typedEvent(1, 2, `{"items":"lamp"}`), // another kind of value
		typedEvent(2, 2, `{"items":[]}`),     // not valid
		{ID: event(3).ID, ContentType: "text/xml", Payload: []byte(`<items/>`)},
		other,
	} {
		r.consume(e.Message())
	}
	r.wantCalls(4)
	r.wantStates(inbox.Dead, inbox.Dead, inbox.Dead, inbox.Dead)
}

func TestPayloadOfALaterVersionWaitsForTheConsumerToBeBroughtUpToDate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := typedRig(t)
		stop := r.run()
		later := typedEvent(1, 3, `{"lines":[]}`)
		r.consume(later.Message())
		time.Sleep(time.Second)
		stop()
		r.wantStates(inbox.Retrying)
	})
}

func TestMessageOfAnotherTypeHasTheHandlerOfItsChoice(t *testing.T) {
	t.Parallel()
	type cancelled struct {
		Order string `json:"order"`
	}
	typ, err := schema.New(schema.Config[cancelled]{Name: "order.cancelled", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	placed := func(_ context.Context, w *work, p placedV2) error {
		w.DB().Do("item " + p.Items[0])
		return nil
	}
	others := consumer.TypedOr(typ, func(_ context.Context, w *work, c cancelled) error {
		w.DB().Do("cancelled " + c.Order)
		return nil
	}, consumer.Ignore)
	r := newRig(t, setup{fn: consumer.TypedOr(newPlaced(t), placed, others)})
	for n, typ := range []string{"order.placed", "order.cancelled", "order.shipped"} {
		e := typedEvent(n, 1, `{"item":"lamp","order":"42"}`)
		e.Type = typ
		r.consume(e.Message())
	}
	r.wantStates()
	if r.store.done("item lamp") != 1 || r.store.done("cancelled 42") != 1 {
		t.Error("a message did not reach the handler of its type")
	}
	if c := r.handler.Counters(); c.Applied != 3 {
		t.Errorf("counters: %+v", c)
	}
}
