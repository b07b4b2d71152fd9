package middleware_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/memory"
)

// The handlers of an existing router get an inbox: copies do not reach them, and the messages that
// they return are written to the outbox.
func ExampleRouter() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sqlite.Open(filepath.Join(dir, "inventory.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		log.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		log.Fatal(err)
	}
	outbox, err := producer.New(store, producer.Config{Name: "inventory"})
	if err != nil {
		log.Fatal(err)
	}
	inbox, err := consumer.New(store, consumer.Config{Service: "inventory"}, consumer.WithOutbox(outbox))
	if err != nil {
		log.Fatal(err)
	}
	broker, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}

	reserve := func(msg *message.Message) ([]*message.Message, error) {
		w, _ := middleware.WorkFrom[*sql.Tx](msg.Context())
		_ = w.DB() // the transaction for the handler's changes
		fmt.Printf("reserving %s\n", msg.Payload)
		return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
	}
	var direct message.Publisher // gets no messages
	router.AddHandler("reserve", "order.placed", broker.Subscriber("reserve"), "stock.reserved", direct, reserve)
	router.AddPlugin(middleware.Router(inbox, middleware.RouterConfig{Publisher: producer.PublisherConfig{
		Key: func(_ string, msg *message.Message) string { return string(msg.Payload) },
	}}))
	go func() { _ = router.Run(ctx) }()
	<-router.Running()

	order := message.NewMessage("018f3c66-0000-5000-8000-000000000001", []byte("lamp"))
	for range 2 { // the second is a copy
		if err := broker.Publish("order.placed", order.Copy()); err != nil {
			log.Fatal(err)
		}
	}
	stats, err := outbox.Stats(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("events in the outbox:", stats.Pending)
	_ = router.Close()
	_ = broker.Close()
	// Output:
	// reserving lamp
	// events in the outbox: 1
}
