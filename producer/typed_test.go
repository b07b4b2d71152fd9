package producer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport/schema"
)

func TestTypedEventSaysWhatItsTypeSays(t *testing.T) {
	t.Parallel()
	type orderPlaced struct {
		Order string `json:"order"`
	}
	typ, err := schema.New(schema.Config[orderPlaced]{
		Name: "order.placed", Topic: "orders", Version: 3,
		Key: func(o orderPlaced) string { return o.Order },
		Validate: func(o orderPlaced) error {
			if o.Order == "" {
				return errors.New("order is missing")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	identity := producer.Event{Source: "order/42", Version: 1}
	err = outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		event, err := producer.Typed(typ, identity, orderPlaced{"42"})
		if err != nil {
			return err
		}
		_, err = w.Write(ctx, event)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r := store.committed[0]
	if r.ID != idgen.Of("orders", "order/42", 1, 0) || r.Topic != "orders" || r.Key != "42" || r.Type != "order.placed" ||
		r.SchemaVersion != 3 || r.ContentType != "application/json" || string(r.Payload) != `{"order":"42"}` {
		t.Errorf("record %+v", r)
	}
	own := identity
	own.Topic, own.Key = "archive", "all"
	if e, err := producer.Typed(typ, own, orderPlaced{"42"}); err != nil || e.Topic != "archive" || e.Key != "all" {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err := producer.Typed(typ, identity, orderPlaced{}); !errors.Is(err, schema.ErrInvalid) || e.Source != "" {
		t.Errorf("%+v, %v", e, err)
	}
}
