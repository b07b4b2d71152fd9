package main

import (
	"errors"
	"log/slog"
	"sync"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// exchangePrefix begins the names of the exchanges and queues.
const exchangePrefix = "boxpair.example."

// newNetwork returns the network for opts.
func newNetwork(opts options, logger *slog.Logger) (network, error) {
	if !opts.onPostgres() {
		return newInProcess()
	}
	return &onRabbitMQ{url: opts.AMQPURL, logger: logger}, nil
}

func serialType(opts options) string {
	if opts.onPostgres() {
		return "bigserial PRIMARY KEY"
	}
	return "integer PRIMARY KEY AUTOINCREMENT"
}

// onRabbitMQ has a fanout exchange for each topic and a quorum queue for each subscription.
type onRabbitMQ struct {
	url    string
	logger *slog.Logger

	mu          sync.Mutex
	subscribers []*amqp.Subscriber
}

func (n *onRabbitMQ) config(service string) wamqp.Config {
	c := amqp.DurablePubSub(n.url, service)
	c.Exchange.GenerateName = func(topic string) string { return exchangePrefix + topic }
	if service != "" {
		c.Queue.GenerateName = func(topic string) string { return exchangePrefix + topic + "." + service }
	}
	return c
}

func (n *onRabbitMQ) publisher() (transport.Sender, error) {
	return amqp.NewPublisher(amqp.PublisherConfig{AMQP: n.config(""), Logger: n.logger})
}

func (n *onRabbitMQ) closePublisher(s transport.Sender) error { return s.Close() }

func (n *onRabbitMQ) subscriber(sub subscription) (message.Subscriber, error) {
	s, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: n.config(sub.service), Logger: n.logger})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subscribers = append(n.subscribers, s)
	return s, nil
}

func (n *onRabbitMQ) declare() error {
	for _, sub := range subscriptions {
		s, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: n.config(sub.service), Logger: n.logger})
		if err != nil {
			return err
		}
		if err := errors.Join(s.SubscribeInitialize(sub.topic), s.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (n *onRabbitMQ) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, s := range n.subscribers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
