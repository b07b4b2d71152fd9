package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/boxpair/boxpair/transport/amqp"
)

var declare = command{
	name: "declare", group: setUp,
	summary: "declare the queues of a consumer in RabbitMQ, as subscribers do",
	details: `Declares exchange, queue and binding of a topic for a consumer, with the arguments that a subscriber of
transport/amqp gives them, and changes nothing that exists. For a consumer that has to get events
before it starts, and for a queue that was deleted while its consumer is down. A queue under a misspelt
name takes events that nobody will handle. So a topic that no given outbox knows, and a consumer that no
given inbox knows, need --new, or an answer on a terminal.

    boxpair declare --amqp amqps://operator@rabbit/ --topic order.placed --consumer stock \
        --outbox postgres://operator@orders/shop --inbox postgres://operator@stock/stock`,
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
		d.known.define(s, "the database of an outbox, to check the topics. May be given several times. Defaults to none.",
			"the database of an inbox, to check the consumer. May be given several times. Defaults to none.")
		s.on(&d.fresh, "new", "declare names that the databases do not know, such as of a consumer that has never run.")
		return d.run
	},
}

// declaration holds the settings of declare.
type declaration struct {
	*relaying

	known    databases // to check names
	topics   []string
	consumer string
	fresh    bool
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
	if err := d.spelt(ctx, p); err != nil {
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

// spelt refuses names that the given databases do not know, unless the operator confirms them. A queue
// may be declared even if a database cannot be read.
func (d *declaration) spelt(ctx context.Context, p *process) error {
	if d.fresh {
		return nil
	}
	strange, err := d.strangers(ctx)
	if err != nil {
		fmt.Fprintf(p.stderr, "whether the names are right could not be checked: %s\n", plain(err.Error()))
		return nil
	}
	if len(d.known.outboxes) == 0 {
		fmt.Fprintln(p.stderr, "--topic is not checked for typing errors: no --outbox is given")
	}
	if len(d.known.inboxes) == 0 && d.consumer != "" {
		fmt.Fprintln(p.stderr, "--consumer is not checked for typing errors: no --inbox is given")
	}
	switch {
	case len(strange) == 0:
		return nil
	case p.asks:
		fmt.Fprintln(p.stderr, plain(strings.Join(strange, ". ")))
		return agreed(p, "declare it all the same?")
	}
	return fmt.Errorf("%s: nothing was declared; pass --new if the name is right", strings.Join(strange, ", "))
}

// strangers says in words which names the given databases do not know.
func (d *declaration) strangers(ctx context.Context) (strange []string, err error) {
	var v vocabulary
	missing := slices.Clone(d.topics)
	err = d.known.each(ctx, true, func(s *operators) error {
		err := v.learn(ctx, s)
		missing = slices.DeleteFunc(missing, func(topic string) bool {
			known, failed := v.hasTopic(ctx, s, topic)
			err = errors.Join(err, failed)
			return known
		})
		return err
	})
	for _, topic := range missing {
		if len(d.known.outboxes) > 0 {
			strange = append(strange, v.noTopic(topic))
		}
	}
	names := v.consumers
	for _, name := range v.consumers {
		service, handler, _ := strings.Cut(name, "/")
		names = append(names, service, handler)
	}
	if len(d.known.inboxes) > 0 && d.consumer != "" && !slices.Contains(names, d.consumer) {
		strange = append(strange, noConsumer(d.consumer, names))
	}
	return strange, err
}
