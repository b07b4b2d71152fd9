package lineage_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/lineage"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/memory"
)

// A request places an order and answers when the order is packed and shipped, by two handlers of
// which the second gets what the first has written.
func Example() {
	shop := openExample()
	defer shop.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	follow, err := lineage.New(lineage.Config{
		Outboxes: []lineage.Outbox{{Name: "shop", Events: shop.outbox}},
		Inboxes:  []lineage.Inbox{{Name: "shop", Messages: shop.inbox}},
		Consumers: map[string][]string{
			"warehouse/pack": {"order.placed"},
			"warehouse/ship": {"order.packed"},
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	placed := shop.place(ctx, "42")
	if err := follow.WaitApplied(ctx, placed, "warehouse/pack"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("packed")

	err = follow.WaitDone(ctx, placed)
	var failed *lineage.FailedError
	switch {
	case errors.As(err, &failed):
		fmt.Println("an operator has to look after", failed)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println("shipped")

	tree, err := follow.Tree(ctx, placed)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tree.Event.Topic, "->", tree.Children[0].Consumer, "->", tree.Children[0].Event.Topic, tree.Children[0].Messages[0].State)
	// Output:
	// packed
	// shipped
	// order.placed -> warehouse/pack -> order.packed applied
}

// exampleShop is a service that runs until it is closed.
type exampleShop struct {
	outbox *producer.Outbox[*sql.Tx]
	inbox  *consumer.Inbox[*sql.Tx]
	close  func()
}

func openExample() *exampleShop {
	dir, err := os.MkdirTemp("", "boxpair-lineage-*")
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqlite.Open(filepath.Join(dir, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sqlite.Migrate(context.Background(), db, sqlite.Config{}); err != nil {
		log.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		log.Fatal(err)
	}
	broker, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	out, err := producer.New(store, producer.Config{Name: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	in, err := consumer.New(store, consumer.Config{Service: "warehouse"}, consumer.WithOutbox(out))
	if err != nil {
		log.Fatal(err)
	}
	stop := runExample(out, in, broker)
	return &exampleShop{outbox: out, inbox: in, close: func() {
		stop()
		_ = broker.Close()
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}}
}

// runExample runs relay and handlers, and returns a function that stops them.
func runExample(out *producer.Outbox[*sql.Tx], in *consumer.Inbox[*sql.Tx], broker *memory.Broker) func() {
	quiet := slog.New(slog.DiscardHandler)
	sender, err := relay.New(out, broker, relay.Config{Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	pack := func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
		_, err := w.Write(ctx, producer.Event{Topic: "order.packed", Payload: msg.Payload})
		return err
	}
	ship := func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { return nil }
	_, err = in.AddHandler(router, "pack", "order.placed", broker.Subscriber("pack"), pack, consumer.HandlerConfig{})
	if err == nil {
		_, err = in.AddHandler(router, "ship", "order.packed", broker.Subscriber("ship"), ship, consumer.HandlerConfig{})
	}
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- boxpair.Group{Outbox: out, Relay: sender, Inbox: in, Router: router, NoJanitor: true, Logger: quiet}.Run(ctx)
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			log.Fatal(err)
		}
	}
}

func (s *exampleShop) place(ctx context.Context, id string) (placed uuid.UUID) {
	err := s.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		written, err := w.Write(ctx, producer.Event{Topic: "order.placed", Source: "order/" + id, Version: 1, Payload: []byte(id)})
		if err == nil {
			placed = written[0]
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	return placed
}
