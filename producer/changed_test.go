package producer_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
)

// operated is a store in which an operator finds one dead event.
type operated struct{ *fakeEvents }

func (operated) Redrive(context.Context, outbox.Filter, string) ([]uuid.UUID, int, error) {
	return []uuid.UUID{uuid.New()}, 0, nil
}

func (operated) Discard(context.Context, outbox.Filter, string) ([]uuid.UUID, error) {
	return []uuid.UUID{uuid.New()}, nil
}

// The command of an operator does not call [producer.Outbox.Run].
func TestChangeOfAnOperatorIsToldToRelaysOfOtherProcesses(t *testing.T) {
	t.Parallel()
	for _, signals := range []bool{true, false} {
		store := operated{&fakeEvents{}}
		if signals {
			store.notified = make(chan string, 1)
		}
		out, err := producer.New(store, producer.Config{Name: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]func(context.Context, outbox.Filter, string) ([]uuid.UUID, error){"redrive": out.Redrive, "discard": out.Discard} {
			if ids, err := change(t.Context(), outbox.Filter{}, "broker is back"); len(ids) != 1 || err != nil {
				t.Errorf("%s: %v, %v", name, ids, err)
			}
			if !signals {
				continue
			}
			if w, from := wakeup.Parse(<-store.notified); w != wakeup.Changed || from == "" {
				t.Errorf("%s tells of %+v", name, w)
			}
		}
	}
}
