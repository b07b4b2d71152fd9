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
	summary: "bind or declare the queue of a consumer in RabbitMQ",
	details: `Declares exchange and binding of a topic for a consumer's queue, as a subscriber of transport/amqp does,
and changes nothing that exists. For a queue that lost its binding while its consumer runs or is down.
A new queue takes the events of its topic, the route looks healed, and perhaps nobody reads the queue: a
consumer reads one queue, by its exact name. So a queue that is not there needs --new, or an answer on a
terminal: for a consumer that has to get events before it first starts, and for a queue that was deleted
while its consumer is down. A refusal names the topic's queues that are there: all of them with
--management; otherwise those that are named after a consumer of an --inbox.

    boxpair declare --amqp amqps://operator@rabbit/ --topic order.placed --consumer stock
    boxpair declare --amqp amqps://operator@rabbit/ --topic order.placed --consumer stock --new`,
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
		s.api(&d.api, "RabbitMQ's management API, to name queues that are there: http://user:password@host:15672. Defaults to none.")
		d.known.define(s, "the database of an outbox, to find a misspelt topic. May be given several times. Defaults to none.",
			"the database of an inbox, to name queues that are there. May be given several times. Defaults to none.")
		d.out.define(s)
		s.on(&d.fresh, "new", "declare a queue that is not there, such as of a consumer that has never run.")
		return d.run
	},
}

// declaration holds the settings of declare.
type declaration struct {
	*relaying

	known    databases // to name what is there
	api      amqp.Management
	topics   []string
	consumer string
	fresh    bool
	out      form
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
	if err := d.exist(ctx, p); err != nil {
		return exitFailed, err
	}
	declared := []declaredQueue{}
	for _, topic := range d.topics {
		if err := subscriber.SubscribeInitialize(topic); err != nil { //nolint:contextcheck // it takes none
			return exitFailed, fmt.Errorf("--topic %s: %w", topic, err)
		}
		one := declaredQueue{topic, d.queueOf(topic, d.consumer)}
		declared = append(declared, one)
		if !d.out.json() {
			fmt.Fprintf(p.stdout, "queue %s of topic %s is there\n", plain(one.Queue), plain(topic))
		}
	}
	if d.out.json() {
		if err := d.out.encode(p.stdout, map[string]any{"queues": declared}); err != nil {
			return exitFailed, err
		}
	}
	return exitOK, ctx.Err()
}

// declaredQueue is a queue of declare in JSON.
type declaredQueue struct {
	Topic string `json:"topic"`
	Queue string `json:"queue"`
}

// queueOf returns the name of the queue of a topic's consumer.
func (d *declaration) queueOf(topic, consumer string) string {
	return d.topologyOf(d.broker, consumer).Queue.GenerateName(topic)
}

// exist refuses queues that are not there, unless the operator wants new ones. It says which queues
// nobody reads.
func (d *declaration) exist(ctx context.Context, p *process) error {
	if d.fresh {
		return nil
	}
	look, err := dialQueues(ctx, d.broker, d.hosts)
	if err != nil {
		return fmt.Errorf("--amqp: %w", err)
	}
	defer look.close()
	var gone []string
	for _, topic := range d.topics {
		name := d.queueOf(topic, d.consumer)
		q, err := look.queue(name)
		if err != nil {
			return fmt.Errorf("--topic %s: %w", topic, err)
		}
		switch {
		case q == nil:
			gone = append(gone, "there is no queue "+name+d.others(ctx, p, look, topic))
		case q.Consumers == 0 && d.partitions == 0:
			fmt.Fprintln(p.stderr, plain("nobody reads queue "+name+" now: its messages wait until its consumer starts"+d.others(ctx, p, look, topic)))
		}
	}
	if len(gone) == 0 {
		return nil
	}
	text := strings.Join(append(gone, d.strangers(ctx, p)...), ". ")
	const warning = "A new queue takes the events, the route looks healed, and perhaps nobody reads the queue"
	if p.asks {
		fmt.Fprintln(p.stderr, plain(text+". "+warning))
		return agreed(p, "declare it all the same?")
	}
	return fmt.Errorf("%s. Nothing was declared. %s: pass --new only if a consumer reads a queue of exactly this name, or will when it starts", text, warning)
}

// others names the other queues of the topic's consumers that are there, with a leading semicolon, or
// returns "". A declaration does without them.
func (d *declaration) others(ctx context.Context, p *process, look *queueLook, topic string) string {
	if d.consumer == "" {
		return ""
	}
	list, err := d.siblings(ctx, look, topic)
	if err != nil {
		fmt.Fprintln(p.stderr, plain("the queues that are there could not be read: "+err.Error()))
	}
	var texts []string
	for _, q := range list {
		if consumer := strings.TrimPrefix(q.Queue, topic+"_"); consumer != d.consumer {
			read := "that nobody reads"
			if q.Consumers > 0 {
				read = "that a consumer reads"
			}
			texts = append(texts, fmt.Sprintf("%s %s (--consumer %s)", q.Queue, read, quoted(consumer)))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return "; there is " + strings.Join(texts, ", and ")
}

// siblings returns the queues of a topic's consumers that are there: all of them from the management
// API, or those that are named after consumers of the given inboxes.
func (d *declaration) siblings(ctx context.Context, look *queueLook, topic string) ([]queueState, error) {
	if d.api.URL != "" {
		return queuesAfter(ctx, d.api, look.vhost, topic+"_")
	}
	var v vocabulary
	inboxes := d.known
	inboxes.outboxes = nil
	err := inboxes.each(ctx, true, func(s *operators) error { return v.learn(ctx, s) })
	var list []queueState
	for _, consumer := range queueNames(v.consumers) {
		q, failed := look.queue(d.queueOf(topic, consumer))
		if failed != nil {
			return list, errors.Join(err, failed)
		}
		if q != nil {
			list = append(list, *q)
		}
	}
	return list, err
}

// mostGuessed bounds the names of queues for which a broker is asked.
const mostGuessed = 100

// queueNames returns the names under which the queues of consumers may be, such as of stock/reserve.
func queueNames(consumers []string) (names []string) {
	for _, name := range consumers {
		service, handler, _ := strings.Cut(name, "/")
		names = append(names, service, handler)
		for _, between := range []string{".", "-", "_", "/"} {
			names = append(names, service+between+handler)
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
	return names[:min(len(names), mostGuessed)]
}

// strangers says in words which topics the given outboxes do not know.
func (d *declaration) strangers(ctx context.Context, p *process) (strange []string) {
	if len(d.known.outboxes) == 0 {
		return nil
	}
	outboxes := d.known
	outboxes.inboxes = nil
	var v vocabulary
	missing := slices.Clone(d.topics)
	err := outboxes.each(ctx, true, func(s *operators) error {
		err := v.learn(ctx, s)
		missing = slices.DeleteFunc(missing, func(topic string) bool {
			known, failed := v.hasTopic(ctx, s, topic)
			err = errors.Join(err, failed)
			return known
		})
		return err
	})
	if err != nil {
		fmt.Fprintln(p.stderr, plain("whether the topics are right could not be checked: "+err.Error()))
		return nil
	}
	for _, topic := range missing {
		strange = append(strange, v.noTopic(topic))
	}
	return strange
}
