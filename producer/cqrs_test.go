package producer_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
)

func TestWatermillsEventBusWritesToTheOutbox(t *testing.T) {
	t.Parallel()
	type OrderPlaced struct{ Order string }
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		publisher, err := w.Publisher(ctx, producer.PublisherConfig{
			Source: "order/42", Version: 1,
			Key: func(string, *message.Message) string { return "42" },
		})
		if err != nil {
			return err
		}
		bus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
			Marshaler:            cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
		})
		if err != nil {
			return err
		}
		return bus.Publish(ctx, OrderPlaced{Order: "42"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(store.committed) != 1 {
		t.Fatalf("%d events committed, want 1", len(store.committed))
	}
	r := store.committed[0]
	if r.ID != idgen.Of("orders", "order/42", 1, 0) || r.Topic != "OrderPlaced" || r.Key != "42" || string(r.Payload) != `{"Order":"42"}` {
		t.Errorf("record %+v", r)
	}
}
