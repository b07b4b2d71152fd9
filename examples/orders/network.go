package main

import (
	"context"
	"math/rand/v2"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

// network connects the services.
type network interface {
	publisher() (transport.Sender, error)
	closePublisher(transport.Sender) error
	subscriber(subscription) (message.Subscriber, error)
	// declare declares the queues of all subscriptions, so that no event is published before its
	// queue exists.
	declare() error
	close() error
}

// duplicator sends a share of the messages twice, like a network that loses an answer.
type duplicator struct {
	transport.Sender
	share    float64
	injected atomic.Int64
}

// Send sends msg, and sometimes a copy of it afterwards.
func (d *duplicator) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	twice := rand.Float64() < d.share
	var again *message.Message
	if twice {
		again = msg.Copy()
	}
	d.Sender.Send(ctx, topic, msg, done)
	if twice {
		d.Sender.Send(context.WithoutCancel(ctx), topic, again, func(r transport.Result) {
			if r.Outcome == transport.Confirmed {
				d.injected.Add(1)
			}
		})
	}
}

// inProcess is the network of the embedded default.
type inProcess struct {
	broker *memory.Broker
}

func newInProcess() (*inProcess, error) {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	return &inProcess{broker}, nil
}

func (n *inProcess) publisher() (transport.Sender, error) { return n.broker, nil }

// closePublisher leaves the broker open, since other relays publish to it too.
func (n *inProcess) closePublisher(transport.Sender) error { return nil }

func (n *inProcess) subscriber(sub subscription) (message.Subscriber, error) {
	return n.broker.Subscriber(sub.consumer()), nil
}

func (n *inProcess) declare() error {
	for _, sub := range subscriptions {
		if err := n.broker.Subscriber(sub.consumer()).SubscribeInitialize(sub.topic); err != nil {
			return err
		}
	}
	return nil
}

func (n *inProcess) close() error { return n.broker.Close() }
