package amqp_test

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// A publisher that declares the queues of its consumers, so that they lose nothing
// that is published before they first start.
func ExampleNewPublisher() {
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{
		AMQP: amqp.DurablePubSub("amqp://orders:secret@rabbitmq:5672/shop", ""),
		Queues: []amqp.Queue{
			{Topic: "order.placed", Name: "order.placed_inventory"},
			{Topic: "order.placed", Name: "order.placed_billing"},
		},
		Logger: slog.Default(),
	})
	if err != nil {
		panic(err)
	}
	defer publisher.Close()

	err = publisher.Publish("order.placed", message.NewMessage(watermill.NewUUID(), []byte(`{"order":4711}`)))
	var failed *amqp.PublishError
	if errors.As(err, &failed) {
		for _, f := range failed.Failed {
			slog.Error("not published", "message", f.UUID, "outcome", f.Result.Outcome, "error", f.Result.Err)
		}
	}
}

// An outcome per message, with many of them under way.
func ExamplePublisher_Send() {
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{
		AMQP: amqp.DurableQueue("amqp://orders:secret@rabbitmq:5672/shop"),
	})
	if err != nil {
		panic(err)
	}
	defer publisher.Close() // waits for the outcomes

	for _, payload := range []string{"1", "2", "3"} {
		msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
		publisher.Send(context.Background(), "order.placed", msg, func(r transport.Result) {
			switch r.Outcome {
			case transport.Confirmed:
				slog.Info("published", "message", msg.UUID)
			case transport.Unavailable, transport.Refused:
				slog.Warn("to be sent again", "message", msg.UUID, "error", r.Err)
			case transport.Returned, transport.Invalid:
				slog.Error("look at it", "message", msg.UUID, "error", r.Err)
			}
		})
	}
}

// A subscriber in a Watermill router: up to 100 messages at once, those of a
// customer one after another.
func ExampleNewSubscriber() {
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP:     amqp.DurablePubSub("amqp://inventory:secret@rabbitmq:5672/shop", "inventory"),
		InFlight: 100,
		Key:      func(msg *message.Message) string { return msg.Metadata["customer"] },
	})
	if err != nil {
		panic(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	router.AddConsumerHandler("reserve", "order.placed", subscriber, func(msg *message.Message) error {
		return nil // acknowledged; an error has it handed out again, later
	})
	if err := router.Run(context.Background()); err != nil {
		panic(err)
	}
}

// A configuration of watermill-amqp carries over. Its queues are classic ones and
// exist, and one message was in flight.
func ExampleNewSubscriber_existingTopology() {
	config := wamqp.NewDurablePubSubConfig("amqp://inventory:secret@rabbitmq:5672/shop",
		wamqp.GenerateQueueNameTopicNameWithSuffix("inventory"))
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP:      config,
		QueueType: amqp.Classic,
		InFlight:  50,
	})
	if err != nil {
		panic(err)
	}
	defer subscriber.Close()
}

// One topic in eight queues. Any number of processes of the consumer share them, and
// each key keeps its order.
func ExampleNewSubscriber_partitioned() {
	config := amqp.DurablePubSub("amqp://inventory:secret@rabbitmq:5672/shop", "inventory")
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{
		AMQP:       config,
		Partitions: 8,
		Queues:     []amqp.Queue{{Topic: "order.placed"}},
	})
	if err != nil {
		panic(err)
	}
	defer publisher.Close()
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: config, Partitions: 8})
	if err != nil {
		panic(err)
	}
	defer subscriber.Close()
}

// From 8 to 16 queues, after the publishers were stopped, the queues drained and the
// consumers stopped.
func ExampleRepartition() {
	err := amqp.Repartition(context.Background(), amqp.SubscriberConfig{
		AMQP:       amqp.DurablePubSub("amqp://inventory:secret@rabbitmq:5672/shop", "inventory"),
		Partitions: 16,
	}, "order.placed", 8)
	if errors.Is(err, amqp.ErrNotDrained) {
		slog.Warn("nothing has changed yet", "error", err)
	}
}
