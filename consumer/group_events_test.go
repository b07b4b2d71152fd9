package consumer_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/producer"
)

func TestEventsOfAGroupHaveTheIDsThatTheyWouldHaveAlone(t *testing.T) {
	t.Parallel()
	emit := func(ctx context.Context, w *work, _ *message.Message) error {
		if w.Event().ID == number(opener) {
			return nil
		}
		if _, err := w.Write(ctx, producer.Event{Topic: "a"}); err != nil {
			return err
		}
		_, err := w.Write(ctx, producer.Event{Topic: "b"}, producer.Event{Topic: "c"})
		return err
	}
	ids := func(t *testing.T, group bool) (ids []string) {
		synctest.Test(t, func(t *testing.T) {
			s := grouped(emit)
			s.store, s.outbox = withOutbox(t)
			r := newRig(t, s)
			if group {
				r.wantAll(r.crowd(msgs(3)...))
				r.wantGroups(1, 0)
			} else {
				for _, m := range msgs(3) {
					r.consume(m)
				}
			}
			for _, e := range r.store.written() {
				ids = append(ids, e.ID.String()+" "+e.CorrelationID)
			}
		})
		slices.Sort(ids)
		return ids
	}
	alone, together := ids(t, false), ids(t, true)
	if len(alone) != 9 || !slices.Equal(alone, together) {
		t.Errorf("alone:\n%s\ntogether:\n%s", strings.Join(alone, "\n"), strings.Join(together, "\n"))
	}
}

func TestEventsOfAGroupAreInTheOrderOfItsMembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouped(func(ctx context.Context, w *work, msg *message.Message) (err error) {
			e := producer.Event{Topic: "a", Payload: []byte(msg.UUID)}
			if w.Event().ID == number(1) {
				_, err = w.Write(ctx, e)
			} else {
				_, err = w.Write(ctx, e)
			}
			return err
		})
		s.store, s.outbox = withOutbox(t)
		r := newRig(t, s)
		r.wantAll(r.crowd(msgs(3)...))
		var got []string
		for _, e := range r.store.written()[1:] { // behind the opener's
			got = append(got, string(e.Payload))
		}
		if want := []string{number(0).String(), number(1).String(), number(2).String()}; !slices.Equal(got, want) {
			t.Errorf("events are of %q, want %q", got, want)
		}
	})
}
