package chain

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
)

// everyThird says yes to every third question.
func everyThird() func() bool {
	var asked atomic.Int64
	return func() bool { return asked.Add(1)%3 == 0 }
}

func TestCommitsWhoseRepliesAreLostHaveOneEffect(t *testing.T) {
	t.Parallel()
	const n = 40
	shop, shopURL := newPostgres(t)
	stock, stockURL := newPostgres(t)
	shopThief, shopURL := testenv.NewThief(t, shopURL, everyThird())
	stockThief, stockURL := testenv.NewThief(t, stockURL, everyThird())
	topic := newTopic(t, "stock")
	robbed := openPostgres(t, stockURL)
	s := startService(t, robbed, outboxOf(t, robbed), newSubscriber(t, "stock"), topic,
		consumer.Config{Service: "stock"}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			if err := robbed.effect(ctx, w, "stock"); err != nil {
				return err
			}
			_, err := w.Write(ctx, producer.Event{Topic: topic + "_reserved", Key: w.Event().Key})
			return err
		})
	startRelay(t, outboxOf(t, shop), newPublisher(t), relay.Config{})

	out := outboxOf(t, openPostgres(t, shopURL))
	unknown := 0
	for i := range n {
		key := fmt.Sprint("order-", i)
		for err := errors.New("first"); err != nil; {
			err = out.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				written, err := w.WriteNow(ctx, numbered(topic, key, 1))
				if err != nil || written[0].Known {
					return err
				}
				return shop.exec(ctx, w.DB(), `INSERT INTO orders VALUES ($1)`, key)
			})
			if err != nil && !errors.Is(err, outbox.ErrCommitUnknown) {
				t.Fatal(err)
			}
			if err != nil {
				unknown++
			}
		}
	}
	stock.wantEffects(t, "stock", n)
	orders, events := shop.number(`SELECT count(*) FROM orders`), shop.number(`SELECT count(*) FROM boxpair.outbox_events`)
	if orders != n || events != n {
		t.Errorf("%d orders and %d events", orders, events)
	}
	if emitted := stock.number(`SELECT count(*) FROM boxpair.outbox_events`); emitted != n {
		t.Errorf("%d events emitted by handlers", emitted)
	}
	if c := s.handler.Counters(); c.CommitsUnknown == 0 || c.Failed != 0 {
		t.Errorf("counters: %+v", c)
	}
	if unknown == 0 || shopThief.Stolen() == 0 || stockThief.Stolen() == 0 {
		t.Errorf("%d unknown commits, %d and %d replies were lost", unknown, shopThief.Stolen(), stockThief.Stolen())
	}
}
