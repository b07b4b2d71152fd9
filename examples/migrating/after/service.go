// Package after is the service of package before with boxpair.
package after

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// shop is the service.
type shop struct {
	pool      *pgxpool.Pool
	topic     string
	outbox    *producer.Outbox[pgx.Tx]
	publisher message.Publisher
	shipped   chan string // tells this program when it is done
}

// place writes an order and publishes its event.
func (s *shop) place(ctx context.Context, id string) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1)`, id); err != nil {
		return err
	}
	msg := message.NewMessageWithContext(s.outbox.WithTx(ctx, tx), watermill.NewUUID(), []byte(id))
	if err := s.publisher.Publish(s.topic, msg); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// ship ships an order.
func (s *shop) ship(msg *message.Message) error {
	id := string(msg.Payload)
	w, ok := middleware.WorkFrom[pgx.Tx](msg.Context())
	if !ok {
		return errors.New("there is no inbox around this handler")
	}
	if _, err := w.DB().Exec(msg.Context(), `INSERT INTO shipments VALUES ($1)`, id); err != nil {
		return err
	}
	select {
	case s.shipped <- id:
	default:
	}
	return nil
}

// Run places order id, and returns once it is shipped.
func Run(ctx context.Context, database, broker, topic, id string) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := watermill.NewSlogLogger(slog.Default())
	config := amqp.DurablePubSub(broker, "ship")
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: config, QueueType: amqp.Classic})
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: config, QueueType: amqp.Classic})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	if err != nil {
		return err
	}
	written, err := outbox.Publisher(producer.PublisherConfig{Key: key, Identity: identity})
	if err != nil {
		return err
	}
	relay, err := relay.New(outbox, publisher, relay.Config{})
	if err != nil {
		return err
	}
	inbox, err := consumer.New(store, consumer.Config{Service: "shop"})
	if err != nil {
		return err
	}
	router.AddPlugin(middleware.Router(inbox, middleware.RouterConfig{}))
	s := &shop{pool: pool, topic: topic, outbox: outbox, publisher: written, shipped: make(chan string, 1)}
	router.AddConsumerHandler("ship", topic, subscriber, s.ship)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- boxpair.Group{Outbox: outbox, Relay: relay, Inbox: inbox, Router: router}.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return err
	}
	if err := s.place(ctx, id); err != nil {
		return err
	}
	<-s.shipped
	stop()
	return <-ended
}

// key keeps the events of an order in order.
func key(_ string, msg *message.Message) string { return string(msg.Payload) }

// identity makes an event that is published again the same event.
func identity(topic string, msg *message.Message) producer.Identity {
	return producer.Identity{Source: topic + "/" + string(msg.Payload), Version: 1}
}
