package telemetry_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/transport/memory"
)

// An order is placed, and its trace goes through outbox, relay and inbox. A real service exports
// the spans that this example keeps.
func Example() {
	ctx := context.Background()
	kept := tracetest.NewSpanRecorder()
	spans := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(kept))
	defer func() { _ = spans.Shutdown(ctx) }()
	metrics := sdkmetric.NewMeterProvider()
	defer func() { _ = metrics.Shutdown(ctx) }()

	tel, err := telemetry.New(telemetry.Config{TracerProvider: spans, MeterProvider: metrics, System: "memory"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tel.Shutdown(ctx) }()
	outbox, inbox, done := openShop(ctx)
	defer done()
	broker, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	relay, err := relay.New(outbox, tel.Publisher(broker), relay.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ship, err := inbox.Handle("ship", telemetry.Handler(tel, "warehouse/ship",
		func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { return nil }), consumer.HandlerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if err := tel.WatchOutbox(outbox.Name(), outbox); err != nil {
		log.Fatal(err)
	}
	if err := tel.WatchConsumer(ship); err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	router.AddConsumerHandler("ship", "order.placed", broker.Subscriber("ship"), ship.Consume)
	go func() { _ = router.Run(ctx) }()
	<-router.Running()

	request, span := spans.Tracer("shop").Start(ctx, "POST /orders")
	err = outbox.Transact(request, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		_, err := tel.Write(ctx, w, producer.Event{Topic: "order.placed", Key: "42", Source: "order/42", Version: 1})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	span.End()
	if _, err := relay.RunOnce(ctx); err != nil { // a service calls Run
		log.Fatal(err)
	}
	_ = broker.Close()
	_ = router.Close()
	printTree(kept.Ended(), trace.SpanID{}, 0)
	// Output:
	// POST /orders
	//   enqueue order.placed (producer)
	//     handle order.placed (consumer)
	//     relay order.placed (client)
}

// openShop opens a database with an outbox and an inbox.
func openShop(ctx context.Context) (*producer.Outbox[*sql.Tx], *consumer.Inbox[*sql.Tx], func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqlite.Open(filepath.Join(dir, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		log.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		log.Fatal(err)
	}
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	inbox, err := consumer.New(store, consumer.Config{Service: "warehouse"}, consumer.WithOutbox(outbox))
	if err != nil {
		log.Fatal(err)
	}
	return outbox, inbox, func() {
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}
}

// printTree prints the spans below parent.
func printTree(spans []sdktrace.ReadOnlySpan, parent trace.SpanID, depth int) {
	for _, s := range spans {
		if s.Parent().SpanID() != parent {
			continue
		}
		fmt.Print(strings.Repeat("  ", depth), s.Name())
		if s.SpanKind() != trace.SpanKindInternal {
			fmt.Printf(" (%v)", s.SpanKind())
		}
		fmt.Println()
		printTree(spans, s.SpanContext().SpanID(), depth+1)
	}
}
