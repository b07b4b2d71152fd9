package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
)

// newPublisher returns the Watermill publisher of a service, which writes to the outbox.
func newPublisher(outbox *producer.Outbox[*sql.Tx]) (message.Publisher, error) {
	return outbox.Publisher(producer.PublisherConfig{
		Key: func(_ string, msg *message.Message) string { return string(msg.Payload) },
		Identity: func(topic string, msg *message.Message) producer.Identity {
			return producer.Identity{Source: topic + "/" + string(msg.Payload), Version: 1}
		},
	})
}

// publishOrder stands for existing code that publishes in a transaction of its own.
func publishOrder(ctx context.Context, db *sql.DB, outbox *producer.Outbox[*sql.Tx], publisher message.Publisher, id string) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if rollback := tx.Rollback(); !errors.Is(rollback, sql.ErrTxDone) {
			err = errors.Join(err, rollback)
		}
	}()
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ($1)`, id); err != nil {
		return err
	}
	ctx = outbox.WithTx(ctx, tx) // once for each transaction
	msg := message.NewMessageWithContext(ctx, watermill.NewUUID(), []byte(id))
	err = publisher.Publish("order.placed", msg)
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	outbox.Committed() // wakes the relay
	return nil
}

// billOrder is a plain Watermill handler, in the transaction of its message.
func billOrder(msg *message.Message) error {
	w, ok := middleware.WorkFrom[*sql.Tx](msg.Context())
	if !ok {
		return errors.New("there is no inbox around this handler")
	}
	_, err := w.DB().ExecContext(msg.Context(), `INSERT INTO invoices VALUES ($1)`, string(msg.Payload))
	return err
}

// addExisting adds billOrder to router, and the inbox around all handlers that have none.
func addExisting(router *message.Router, inbox *consumer.Inbox[*sql.Tx], subscriber message.Subscriber) {
	router.AddConsumerHandler("bill", "order.placed", subscriber, billOrder)
	router.AddPlugin(middleware.Router(inbox, middleware.RouterConfig{}))
}
