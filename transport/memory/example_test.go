package memory_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

// A publish is confirmed when every subscription has acknowledged it.
func Example() {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	defer broker.Close()
	ctx := context.Background()
	msg := message.NewMessage("018f3c66-0000-5000-8000-000000000001", []byte(`{"order":42}`))
	msg.Metadata.Set(transport.MetaKey, "order-42")

	err = broker.Publish("order.placed", msg)
	fmt.Println("before anybody subscribed:", errors.Is(err, memory.ErrUnroutable))

	for _, name := range []string{"stock", "mail"} {
		messages, err := broker.Subscriber(name).Subscribe(ctx, "order.placed")
		if err != nil {
			panic(err)
		}
		go func() {
			for msg := range messages {
				// Handle it, then:
				msg.Ack()
			}
		}()
	}
	err = broker.Publish("order.placed", msg)
	fmt.Println("acknowledged by stock and mail:", err == nil)
	// Output:
	// before anybody subscribed: true
	// acknowledged by stock and mail: true
}

// Send reports the outcome of each message and lets many be under way.
func ExampleBroker_Send() {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	outcome := make(chan transport.Result, 1)
	if err := broker.Subscriber("stock").SubscribeInitialize("order.placed"); err != nil {
		panic(err)
	}
	msg := message.NewMessage("018f3c66-0000-5000-8000-000000000001", nil)
	broker.Send(context.Background(), "order.placed", msg, func(r transport.Result) { outcome <- r })

	broker.Close() // before stock came to read
	r := <-outcome
	fmt.Println(r.Outcome, errors.Is(r.Err, memory.ErrClosed))
	// Output: unavailable true
}
