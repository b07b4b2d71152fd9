package amqp

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/management"
)

// Management is the HTTP API of RabbitMQ's plugin rabbitmq_management.
type Management struct {
	// URL is http://user:password@host:15672, or https://. The user needs the tag management, and
	// access to the virtual host.
	URL string
	// VHost is the virtual host. Defaults to /.
	VHost string
	// Client makes the requests. Defaults to one that gives up after 10 seconds.
	Client *http.Client
}

// QueueLimits tells what the broker does with the messages of a queue, by its arguments and by
// policies. A client of AMQP cannot read policies, and they override the arguments.
type QueueLimits struct {
	Queue string
	// Type is quorum, classic or stream, and empty if the queue does not exist.
	Type string
	// Policy and OperatorPolicy are the names of the policies of the queue, or empty.
	Policy, OperatorPolicy string

	DeliveryLimit      int64         // deliveries until a message is dropped or dead-lettered; -1 is no limit
	MaxLength          int64         // number of messages; -1 is no limit
	MaxLengthBytes     int64         // -1 is no limit
	Overflow           string        // beyond these limits: drop-head, reject-publish or reject-publish-dlx
	MessageTTL         time.Duration // -1 is none
	Expires            time.Duration // time without use until the queue is deleted; -1 is never
	DeadLetterExchange string        // empty is the default exchange, or none
	DeadLetters        bool          // whether dead letters are kept: the exchange exists and has a binding, or the default exchange has the queue

	// Findings are the ways in which the queue loses messages.
	Findings []Finding
}

// Finding is one way in which a queue loses messages.
type Finding struct {
	Queue   string
	Setting string // such as delivery-limit
	Problem string // what happens, in one line
	Remedy  string // how to prevent the loss, in one line
}

// String returns f in one line.
func (f Finding) String() string {
	return fmt.Sprintf("queue %q: %s: %s; %s", f.Queue, f.Setting, f.Problem, f.Remedy)
}

// CheckPolicies reads from RabbitMQ's management API which settings are in force for queues, by
// their arguments and by policies, and finds the settings that lose messages. The result has an
// element for each queue, in the given order. CheckPolicies makes up to three requests for each
// queue, one after another, until ctx ends. Its errors contain no password.
func CheckPolicies(ctx context.Context, m Management, queues ...string) ([]QueueLimits, error) {
	a, err := m.api()
	if err != nil {
		return nil, fmt.Errorf("amqp: check policies: %w", err)
	}
	var overview struct {
		Version string `json:"rabbitmq_version"`
	}
	if _, err := a.Get(ctx, &overview, "overview"); err != nil {
		return nil, fmt.Errorf("amqp: check policies: %w", err)
	}
	major, _, _ := strings.Cut(overview.Version, ".")
	version, err := strconv.Atoi(major)
	if err != nil {
		return nil, fmt.Errorf("amqp: check policies: %s: not a management API: the answer has no version of RabbitMQ", a.Host)
	}
	all := make([]QueueLimits, len(queues))
	for i, queue := range queues {
		if all[i], err = a.limits(ctx, queue, version); err != nil {
			return nil, fmt.Errorf("amqp: check policies of queue %q: %w", queue, err)
		}
	}
	return all, nil
}

// managementAPI is the API of a validated [Management].
type managementAPI struct{ *management.API }

func (m *Management) api() (*managementAPI, error) {
	a, err := management.New(m.URL, m.VHost, m.Client)
	return &managementAPI{a}, err
}

// queueInfo has the settings that apply to a queue.
type queueInfo struct {
	Type           string              `json:"type"`
	Durable        bool                `json:"durable"`
	Policy         string              `json:"policy"`
	OperatorPolicy string              `json:"operator_policy"`
	Arguments      management.Settings `json:"arguments"`
	Effective      management.Settings `json:"effective_policy_definition"`
}

// number returns the smaller number of argument and policies; a negative number is no limit.
func (q *queueInfo) number(name string) (n int64, set bool) {
	n = -1
	for _, value := range []any{q.Arguments["x-"+name], q.Effective[name]} {
		f, is := value.(float64)
		if !is {
			continue
		}
		set = true
		if v := int64(f); v >= 0 && (n < 0 || v < n) {
			n = v
		}
	}
	return n, set
}

// text returns the text of the argument, or else of the policies.
func (q *queueInfo) text(name string) (text string, set bool) {
	if text, set = q.Arguments["x-"+name].(string); !set {
		text, set = q.Effective[name].(string)
	}
	return text, set
}

func (q *queueInfo) duration(name string) time.Duration {
	n, _ := q.number(name)
	return max(-1, time.Duration(n)*time.Millisecond)
}

// limits returns the limits of a queue and their findings.
func (a *managementAPI) limits(ctx context.Context, queue string, version int) (QueueLimits, error) {
	l := QueueLimits{Queue: queue}
	var q queueInfo
	there, err := a.Get(ctx, &q, "queues", a.VHost, queue)
	if err != nil {
		return l, err
	}
	if !there {
		l.addFinding("queue", "there is none of this name", "start its consumer, or declare it")
		return l, nil
	}
	l.Type, l.Policy, l.OperatorPolicy = q.Type, q.Policy, q.OperatorPolicy
	l.MaxLength, _ = q.number("max-length")
	l.MaxLengthBytes, _ = q.number("max-length-bytes")
	l.MessageTTL, l.Expires = q.duration("message-ttl"), q.duration("expires")
	if l.Overflow, _ = q.text("overflow"); l.Overflow == "" {
		l.Overflow = amqp091.QueueOverflowDropHead
	}
	if err := a.checkDeadLetters(ctx, &l, &q); err != nil {
		return l, err
	}
	l.checkDeliveryLimit(&q, version)
	l.findLosses(&q)
	return l, nil
}

// checkDeadLetters finds out whether dead letters reach a queue.
func (a *managementAPI) checkDeadLetters(ctx context.Context, l *QueueLimits, q *queueInfo) error {
	var set bool
	l.DeadLetterExchange, set = q.text("dead-letter-exchange")
	if !set {
		return nil
	}
	const setting = "dead-letter-exchange"
	if l.DeadLetterExchange == "" {
		key, _ := q.text("dead-letter-routing-key")
		var queue struct{}
		var err error
		if key != "" {
			l.DeadLetters, err = a.Get(ctx, &queue, "queues", a.VHost, key)
		}
		if err == nil && !l.DeadLetters {
			l.addFinding(setting, "the default exchange has no queue for what is dead-lettered, which is dropped", "name an existing queue by dead-letter-routing-key")
		}
		return err
	}
	var exchange struct{}
	there, err := a.Get(ctx, &exchange, "exchanges", a.VHost, l.DeadLetterExchange)
	if err != nil {
		return err
	}
	if !there {
		l.addFinding(setting, fmt.Sprintf("the exchange %q does not exist, so that what is dead-lettered is dropped", l.DeadLetterExchange), "declare the exchange, and a queue for it")
		return nil
	}
	var bindings []struct{}
	if _, err := a.Get(ctx, &bindings, "exchanges", a.VHost, l.DeadLetterExchange, "bindings", "source"); err != nil {
		return err
	}
	if l.DeadLetters = len(bindings) > 0; !l.DeadLetters {
		l.addFinding(setting, fmt.Sprintf("nothing is bound to the exchange %q, so that what is dead-lettered is dropped", l.DeadLetterExchange), "bind a queue to it")
	}
	return nil
}

// checkDeliveryLimit finds out what happens to a message that is delivered again and again.
func (l *QueueLimits) checkDeliveryLimit(q *queueInfo, version int) {
	const setting, remedy = "delivery-limit", "set delivery-limit -1 by a policy, and lift it in others, or dead-letter to a queue"
	limit, set := q.number(setting)
	l.DeliveryLimit = limit
	if l.Type != amqp091.QueueTypeQuorum {
		l.DeliveryLimit = -1
		return
	}
	switch {
	case !set && version >= 4:
		const byDefault = 20
		l.DeliveryLimit = byDefault
		l.addDrop(setting, "a message is dropped after 20 deliveries, by default", remedy)
	case set && limit < 0 && version < 4:
		l.DeliveryLimit = 0
		l.addDrop(setting, "-1 drops a message after its first failure on RabbitMQ 3", "leave it out")
	case limit >= 0:
		l.addDrop(setting, fmt.Sprintf("a message is dropped after %d deliveries", limit), remedy)
	}
}

// findLosses finds the other settings that lose messages.
func (l *QueueLimits) findLosses(q *queueInfo) {
	if l.Type == amqp091.QueueTypeStream {
		l.addFinding("type", "a stream is read from its end, so that its consumer skips earlier messages", "use a quorum queue")
	}
	if !q.Durable {
		l.addFinding("durable", "the queue is gone after a restart of the broker", "declare it as durable")
	}
	if l.Overflow == amqp091.QueueOverflowDropHead {
		const problem, remedy = "the oldest messages are dropped beyond it", "set overflow to reject-publish, or lift the limit"
		if l.MaxLength >= 0 {
			l.addDrop("max-length", problem, remedy)
		}
		if l.MaxLengthBytes >= 0 {
			l.addDrop("max-length-bytes", problem, remedy)
		}
	}
	if l.MessageTTL >= 0 {
		l.addDrop("message-ttl", fmt.Sprintf("a message is dropped after %v", l.MessageTTL), "lift it, or dead-letter to a queue")
	}
	if l.Expires >= 0 {
		l.addFinding("expires", fmt.Sprintf("the queue is deleted with its messages when nobody uses it for %v", l.Expires), "lift it")
	}
}

// addDrop adds a finding about dropped messages, unless they are dead-lettered.
func (l *QueueLimits) addDrop(setting, problem, remedy string) {
	if !l.DeadLetters {
		l.addFinding(setting, problem, remedy)
	}
}

func (l *QueueLimits) addFinding(setting, problem, remedy string) {
	l.Findings = append(l.Findings, Finding{Queue: l.Queue, Setting: setting, Problem: problem, Remedy: remedy})
}
