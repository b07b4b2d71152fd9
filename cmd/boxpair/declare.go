package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxpair/boxpair/transport/amqp"
)

var declare = command{
	name: "declare", group: setUp,
	summary: "declare the queues of a consumer in RabbitMQ, as its subscriber does",
	details: `Declares exchange, queue and binding of a topic for a consumer, with the arguments that a subscriber of
transport/amqp gives them, and changes nothing that exists. For a consumer that has to get events
before it starts, and for a queue that was deleted while its consumer is down.

    boxpair declare --amqp amqps://operator@rabbit/ --topic order.placed --consumer stock`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		d := &declaration{relaying: &relaying{exchanges: "topic"}}
		r := d.relaying
		s.add("amqp", envOf("amqp")+"_URL", "URL", "the RabbitMQ server: amqp://user:password@host:5672/vhost, or amqps:// for TLS.", false, r.setBroker(s))
		s.add("amqp-hosts", envOf("amqp")+"_HOSTS", "HOSTS", "the nodes of the cluster, separated by commas, in place of the host in --amqp. Defaults to none.", false, r.setHosts)
		s.add("topic", envOf("topic"), "TOPIC", "a topic. May be given several times.", true, func(text string) error { d.topics = append(d.topics, text); return nil })
		s.text(&d.consumer, "consumer", "NAME", "the consumer as DurablePubSub names it: the queue is TOPIC_NAME. Required unless --exchanges is queue.")
		s.add("exchanges", envOf("exchanges"), "KIND", "topic, queue or exchange:NAME, as the relay's. Defaults to topic.", false, r.setExchanges)
		s.count(&r.partitions, "partitions", "the number of queues of the consumer, as SubscriberConfig.Partitions. Defaults to none.")
		s.on(&r.competing, "competing-consumers", "as SubscriberConfig.CompetingConsumers.")
		return d.run
	},
}

// declaration holds the settings of declare.
type declaration struct {
	*relaying

	topics   []string
	consumer string
}

func (d *declaration) run(ctx context.Context, p *process) (int, error) {
	var errs []error
	if d.broker == "" {
		errs = append(errs, fmt.Errorf("--amqp (or %s_URL): is missing", envOf("amqp")))
	}
	if len(d.topics) == 0 {
		errs = append(errs, errors.New("--topic: is missing"))
	}
	if (d.consumer == "") != (d.exchanges == "queue") {
		errs = append(errs, errors.New("--consumer: is required, and only with --exchanges topic or exchange:NAME"))
	}
	if err := errors.Join(errs...); err != nil {
		return exitFailed, err
	}
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP: d.topologyOf(d.broker, d.consumer), Hosts: d.hosts, Partitions: d.partitions, CompetingConsumers: d.competing, Logger: logger(p.stderr, "", "warn"),
	})
	if err != nil {
		return exitFailed, fmt.Errorf("--amqp: %w", err)
	}
	defer func() { _ = subscriber.Close() }()
	for _, topic := range d.topics {
		if err := subscriber.SubscribeInitialize(topic); err != nil { //nolint:contextcheck // it takes none
			return exitFailed, fmt.Errorf("--topic %s: %w", topic, err)
		}
		fmt.Fprintf(p.stdout, "queue %s of topic %s is there\n", plain(d.topologyOf(d.broker, d.consumer).Queue.GenerateName(topic)), plain(topic))
	}
	return exitOK, ctx.Err()
}
