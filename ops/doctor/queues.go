package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/management"
	"github.com/boxpair/boxpair/transport/amqp"
)

// checkOf is the check of a setting in the findings of [amqp.CheckPolicies].
var checkOf = map[string]Check{
	"queue": Missing, "delivery-limit": DeliveryLimit, "max-length": MaxLength, "max-length-bytes": MaxLength, "message-ttl": MessageTTL,
	"expires": Expires, "dead-letter-exchange": DeadLetterExchange, "type": QueueType, "durable": Durable,
}

// queues judges queues.
func (r *run) queues(ctx context.Context, b *broker) {
	names := r.cfg.Queues
	if len(names) == 0 {
		for i := range b.queues {
			names = append(names, b.queues[i].Name)
		}
	}
	for _, name := range names {
		r.limits(ctx, b, name)
		at := slices.IndexFunc(b.queues, func(q queue) bool { return q.Name == name })
		if at < 0 {
			continue // limits reports the missing queue
		}
		q := &b.queues[at]
		subject := fmt.Sprintf("queue %q", name)
		if q.Effective == nil {
			r.add(Reach, NotChecked, subject, "RabbitMQ has no statistics of the queue yet, and does not tell its policies", "try again in ten seconds")
			q.Effective = &management.Settings{}
		}
		r.lifetime(subject, q)
		r.use(subject, b, q)
		r.strategy(subject, q)
	}
}

// limits looks for settings in force that lose or refuse messages.
func (r *run) limits(ctx context.Context, b *broker, name string) {
	subject := fmt.Sprintf("queue %q", name)
	all, err := amqp.CheckPolicies(ctx, r.cfg.Management, name)
	if err != nil {
		r.failed(DeliveryLimit, subject, err)
		return
	}
	l := &all[0]
	for _, f := range l.Findings {
		severity := Loses
		if f.Setting == "queue" {
			severity = Stalls
		}
		remedy := f.Remedy
		if l.Policy != "" {
			remedy += fmt.Sprintf("; it has the policy %q: rabbitmqctl list_policies -p %s", l.Policy, shell(b.VHost))
		}
		if l.OperatorPolicy != "" {
			remedy += fmt.Sprintf("; it has the operator policy %q: rabbitmqctl list_operator_policies -p %s", l.OperatorPolicy, shell(b.VHost))
		}
		r.add(checkOf[f.Setting], severity, subject, f.Setting+": "+f.Problem, remedy)
	}
	if limit := max(l.MaxLength, l.MaxLengthBytes); limit >= 0 && l.Overflow != amqp091.QueueOverflowDropHead {
		r.add(Overflow, Stalls, subject, fmt.Sprintf("%s: a full queue refuses messages, and the events of its topics wait in the outbox", l.Overflow), "lift max-length and max-length-bytes, or ignore the check and watch the length of the queue")
	}
}

// lifetime looks for queues that end with a connection or a consumer.
func (r *run) lifetime(subject string, q *queue) {
	switch {
	case q.Exclusive:
		r.add(AutoDelete, Loses, subject, "the queue is exclusive: it is deleted with its messages when its connection ends", "declare it without exclusive")
	case q.AutoDelete:
		r.add(AutoDelete, Loses, subject, "the queue is deleted with its messages when its last consumer ends", "delete it when it is empty, and declare it without auto-delete")
	}
	if _, mirrored := (*q.Effective)["ha-mode"]; mirrored {
		r.add(QueueType, Loses, subject, "the queue is mirrored: a mirror that lags loses confirmed messages at a fail-over, and RabbitMQ 4 has no mirrors", "delete it when it is empty, and declare it with x-queue-type quorum")
	}
}

// mostNamed is how many connections or virtual hosts a finding names.
const mostNamed = 8

// use looks at the consumers of a queue.
func (r *run) use(subject string, b *broker, q *queue) {
	consumers := 0
	var by []string // connections
	for i := range b.consumers {
		if s := &b.consumers[i]; s.Queue.Name == q.Name {
			consumers++
			if client := b.client(s); client != "" && !slices.Contains(by, client) && len(by) < mostNamed {
				by = append(by, client)
			}
		}
	}
	if q.Messages != nil && *q.Messages > 0 && consumers == 0 {
		r.add(NoConsumer, Stalls, subject, fmt.Sprintf("%d messages wait, and nobody consumes the queue", *q.Messages), "start its consumer, or, if nobody needs it: rabbitmqctl delete_queue -p "+shell(b.VHost)+" "+shell(q.Name))
	}
	if single, _ := q.Arguments["x-single-active-consumer"].(bool); consumers > 1 && !single && q.Type != amqp091.QueueTypeStream {
		r.add(SeveralConsumers, Loses, subject, fmt.Sprintf("%d consumers share the queue (%s): different services each lose the messages of the others, processes of one service the order of keys", consumers, strings.Join(by, ", ")),
			r.alone())
	}
}

// client describes the connection of a subscription. An address alone tells of no service.
func (b *broker) client(s *subscription) string {
	at, _, _ := strings.Cut(s.Channel.Connection, " ->")
	if at == "" {
		return ""
	}
	text := "user " + s.Channel.User
	if i := slices.IndexFunc(b.connections, func(c connection) bool { return c.Name == s.Channel.Connection }); i >= 0 {
		if name, _ := b.connections[i].Client["connection_name"].(string); name != "" {
			text += fmt.Sprintf(" as %q", name)
		}
	}
	return text + " from " + at
}

// alone returns the remedy for a queue with several consumers. A single active consumer would starve
// all services of the queue but one, so there is no word of a new declaration once consumers are known
// to take messages from each other.
func (r *run) alone() string {
	const first = "see first whether the consumers belong to one service: give each service a queue of its own, such as amqp.DurablePubSub with another name; "
	if r.shared {
		return first + "a single active consumer is for the processes of one service only"
	}
	return first + "for the processes of one service only, delete the queue when it is empty, and let amqp.SubscriberConfig declare it with x-single-active-consumer or Partitions; ignore the check where order does not matter"
}

// strategy looks at how a quorum queue hands over dead letters.
func (r *run) strategy(subject string, q *queue) {
	setting := func(name string) string {
		if text, is := q.Arguments["x-"+name].(string); is {
			return text
		}
		text, _ := (*q.Effective)[name].(string)
		return text
	}
	_, argued := q.Arguments["x-dead-letter-exchange"]
	_, ruled := (*q.Effective)["dead-letter-exchange"]
	if q.Type != amqp091.QueueTypeQuorum || !argued && !ruled {
		return
	}
	if setting("dead-letter-strategy") != "at-least-once" || setting("overflow") != amqp091.QueueOverflowRejectPublish {
		r.add(DeadLetterStrategy, Loses, subject, "dead letters are handed over without a confirm, and may be lost on the way", "set dead-letter-strategy at-least-once and overflow reject-publish by a policy or by arguments")
	}
}
