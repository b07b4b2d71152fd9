package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport/memory"
)

// Charge is the intent: the order to charge at the provider.
type Charge struct {
	Order string `json:"order"`
}

// Receipt is the result of a charge.
type Receipt struct {
	Number string `json:"number"`
}

// serve is the service, in a process of its own, until ctx ends.
func serve(ctx context.Context, providerURL string) error {
	shop, err := open(ctx, []string{envDatabase + "=" + os.Getenv(envDatabase), envFile + "=" + os.Getenv(envFile)})
	if err != nil {
		return err
	}
	defer shop.close()
	return shop.serve(ctx, providerURL)
}

// payment charges an order: the intent is written with the claim of order.placed, the provider is
// called under a key that never changes, and the receipt is written with order.paid.
func payment[TX any](db *database[TX], providerURL string) effects.Effect[TX, Charge, Receipt] {
	return effects.Effect[TX, Charge, Receipt]{
		Prepare: func(_ context.Context, _ *consumer.Work[TX], msg *message.Message) (Charge, error) {
			return Charge{Order: string(msg.Payload)}, nil
		},
		Do: func(ctx context.Context, key uuid.UUID, c Charge) (Receipt, error) {
			return ask(ctx, providerURL, key, c)
		},
		Finish: func(ctx context.Context, w *consumer.Work[TX], c Charge, r Receipt) error {
			if err := db.exec(ctx, w.DB(), `UPDATE orders SET receipt = $1 WHERE id = $2`, r.Number, c.Order); err != nil {
				return err
			}
			_, err := w.Write(ctx, producer.Event{Topic: "order.paid", Key: c.Order, Payload: []byte(c.Order)})
			return err
		},
	}
}

// ask calls the provider. After an error the charge may or may not have happened, unless the
// provider refused the request.
func ask(ctx context.Context, providerURL string, key uuid.UUID, c Charge) (Receipt, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return Receipt{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, providerURL, bytes.NewReader(body))
	if err != nil {
		return Receipt{}, err
	}
	req.Header.Set("Idempotency-Key", key.String())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Receipt{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusBadRequest, http.StatusPaymentRequired, http.StatusUnprocessableEntity: // for good; 408, 409 and 429 are not
		return Receipt{}, consumer.Reject(fmt.Errorf("provider answers %s", resp.Status))
	default:
		return Receipt{}, fmt.Errorf("provider answers %s", resp.Status)
	}
	var r Receipt
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&r)
	return r, err
}

// serve runs relay, router and inbox over db.
func (db *database[TX]) serve(ctx context.Context, providerURL string) error {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = broker.Close() }()
	relay, err := relay.New(db.outbox, broker, relay.Config{LeaseTTL: time.Second})
	if err != nil {
		return err
	}
	inbox, err := consumer.New(db.store, consumer.Config{Service: "shop"}, consumer.WithOutbox(db.outbox))
	if err != nil {
		return err
	}
	pay, err := effects.Handle(inbox, "pay", payment(db, providerURL), effects.Config{
		Handler:    consumer.HandlerConfig{Topic: "order.placed"},
		Idempotent: true, // the provider remembers keys
		Timeout:    time.Second, Lease: 2 * time.Second, MinBackoff: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("pay", "order.placed", broker.Subscriber("pay"), pay.Consume)
	ship := func(ctx context.Context, w *consumer.Work[TX], msg *message.Message) error {
		return db.exec(ctx, w.DB(), `INSERT INTO shipments (id) VALUES ($1)`, string(msg.Payload))
	}
	_, err = inbox.AddHandler(router, "ship", "order.paid", broker.Subscriber("ship"), ship, consumer.HandlerConfig{})
	if err != nil {
		return err
	}
	return boxpair.Group{Outbox: db.outbox, Relay: relay, Inbox: inbox, Router: router}.Run(ctx)
}
