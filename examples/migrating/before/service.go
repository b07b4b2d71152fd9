// Package before is a service with stock Watermill: it places an order, and ships it.
package before

import (
	"context"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgxpool"
)

// shop is the service.
type shop struct {
	pool      *pgxpool.Pool
	topic     string
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
	msg := message.NewMessageWithContext(ctx, watermill.NewUUID(), []byte(id))
	if err := s.publisher.Publish(s.topic, msg); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// ship ships an order.
func (s *shop) ship(msg *message.Message) error {
	id := string(msg.Payload)
	if _, err := s.pool.Exec(msg.Context(), `INSERT INTO shipments VALUES ($1)`, id); err != nil {
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
	config := amqp.NewDurablePubSubConfig(broker, amqp.GenerateQueueNameTopicNameWithSuffix("ship"))
	publisher, err := amqp.NewPublisher(config, logger)
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(config, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	poison, err := middleware.PoisonQueue(publisher, topic+".poison")
	if err != nil {
		return err
	}
	router.AddMiddleware(poison, middleware.Retry{MaxRetries: 3, InitialInterval: 100 * time.Millisecond}.Middleware)
	s := &shop{pool: pool, topic: topic, publisher: publisher, shipped: make(chan string, 1)}
	router.AddConsumerHandler("ship", topic, subscriber, s.ship)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
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
