package consumer_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/schema"
	"github.com/boxpair/boxpair/transport/signature"
)

// A typed handler is given a value of today's version, whatever version was written.
func ExampleTyped() {
	type placedV1 struct{ Item string }
	type placed struct{ Items []string }
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	inbox, err := consumer.New(store, consumer.Config{Service: "inventory"})
	if err != nil {
		log.Fatal(err)
	}
	typ, err := schema.New(schema.Config[placed]{
		Name: "order.placed", Version: 2,
		Upcast: map[int]schema.Upcaster{
			1: schema.Up(func(old placedV1) (placed, error) { return placed{Items: []string{old.Item}}, nil }),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	h, err := inbox.Handle("reserve", consumer.Typed(typ, func(ctx context.Context, w *consumer.Work[*sql.Tx], p placed) error {
		_, err := w.DB().ExecContext(ctx, `INSERT INTO stock VALUES (?, -1)`, p.Items[0])
		fmt.Println("reserved", p.Items)
		return err
	}), consumer.HandlerConfig{Topic: "order.placed"})
	if err != nil {
		log.Fatal(err)
	}

	// Events as producer.Typed makes them, from services of last year and of today.
	for version, payload := range []string{`{"Item":"lamp"}`, `{"Items":["chair","table"]}`} {
		e := transport.Event{
			ID: idgen.Of("shop", "order-42", int64(version), 0), Type: "order.placed", SchemaVersion: version + 1,
			ContentType: "application/json", Payload: []byte(payload),
		}
		if err := h.Consume(e.Message()); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// reserved [lamp]
	// reserved [chair table]
}

// A service whose producers, as their signed messages say, may send events again for longer than it
// remembers dispatch IDs does not start, so that somebody raises the window before a late copy is
// set aside as too old.
func ExampleInbox_Check() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	day := 24 * time.Hour
	key := signature.Key{ID: "2026", Secret: bytes.Repeat([]byte("k"), signature.MinSecret)} // shared with the relay
	signer, err := signature.NewSigner(key)
	if err != nil {
		log.Fatal(err)
	}
	verifier, err := signature.NewVerifier(key)
	if err != nil {
		log.Fatal(err)
	}
	open := func(cfg consumer.Config) (*consumer.Inbox[*sql.Tx], *consumer.Handler[*sql.Tx]) {
		cfg.Service, cfg.Verifier = "inventory", verifier
		inbox, err := consumer.New(store, cfg)
		if err != nil {
			log.Fatal(err)
		}
		h, err := inbox.Handle("reserve", func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { return nil },
			consumer.HandlerConfig{Topic: "order.placed"})
		if err != nil {
			log.Fatal(err)
		}
		return inbox, h
	}
	_, h := open(consumer.Config{Window: 14 * day})
	now := time.Now()
	e := transport.Event{ID: idgen.Of("shop", "order-42", 1, 0), Stamp: now, ResendUntil: now.Add(20 * day)}
	msg := e.Message()
	signer.Sign("order.placed", msg)
	if err := h.Consume(msg); err != nil { // which is how the inbox learns of it
		log.Fatal(err)
	}

	// At the next start:
	inbox, _ := open(consumer.Config{Window: 14 * day})
	fmt.Println("14 days are refused:", errors.Is(inbox.Check(ctx), consumer.ErrShortWindow))
	inbox, _ = open(consumer.Config{Window: 14 * day, ShortWindow: consumer.ReportShortWindow})
	fmt.Println("14 days, and it is only logged:", inbox.Check(ctx))
	inbox, _ = open(consumer.Config{Window: 20 * day})
	fmt.Println("20 days:", inbox.Check(ctx))
	// Output:
	// 14 days are refused: true
	// 14 days, and it is only logged: <nil>
	// 20 days: <nil>
}
