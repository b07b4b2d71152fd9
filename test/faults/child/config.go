package child

import (
	"cmp"
	"errors"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport/amqp"
)

// Role is something that a child does.
type Role string

// The roles.
const (
	Producer Role = "producer"
	Relay    Role = "relay"
	Consumer Role = "consumer"
	Janitor  Role = "janitor"
)

// OutboxName is the producer's name: the first part of every order's dispatch ID.
const OutboxName = "shop"

// maxBody is the largest payload that relays publish.
const maxBody = 64 << 10

// HandlerName is the name of every service's handler.
const HandlerName = "apply"

// Canary is part of every payload, and of one header, and to be seen in no log.
const Canary = "canary-payload"

// Config says what a child does. Durations are short by default, so that a test need
// not wait for them.
type Config struct {
	// Name tells children apart, and names their files. Required.
	Name string
	// Roles are what the child does. Required.
	Roles []Role
	// Program is the program that runs as the child. Defaults to this program.
	Program string `json:"-"`
	// Dir is where the child logs. Required.
	Dir string

	// Outbox is the database of the producer, the relay and the janitor, with a password. The user
	// is the role's own: see [Role.Login]. Required by them.
	Outbox string
	// Inbox is the database of the consumer, likewise. Required by it.
	Inbox string
	// AMQP is the broker. Required by relays and consumers.
	AMQP string
	// Topic is where the orders' events go. Required.
	Topic string
	// Services are the consumers, one queue each; a consumer process is one of all of them.
	// Defaults to "stock".
	Services []string
	// Keys is how many keys there are. Defaults to 4.
	Keys int

	// Producer names the orders. Two producers that run at once differ in it. Defaults to "p".
	Producer string
	// Orders is how many orders are placed. Defaults to 0: until the child ends.
	Orders int
	// Batch is how many orders one transaction places. Defaults to 1.
	Batch int
	// Writers is how many transactions are under way at once. Defaults to 1.
	Writers int
	// Pause is the time between two transactions of a writer. Defaults to 0.
	Pause time.Duration
	// Queue has events written just before the commit, instead of at once. Defaults to false.
	Queue bool
	// PayloadBytes is how large payloads are, at least. Defaults to 0.
	PayloadBytes int
	// Bulk places the orders of a transaction in one statement, and waits while the brake is on:
	// for large runs. Defaults to false.
	Bulk bool
	// Huge has orders whose number is a multiple of it told of in a payload that the relay's
	// publisher refuses for ever. Defaults to 0: never.
	Huge int

	// LeaseTTL is the relay's. Defaults to 1 s.
	LeaseTTL time.Duration
	// SendTimeout is the relay's, and ConfirmTimeout the publisher's. Both default to 2 s.
	SendTimeout, ConfirmTimeout time.Duration
	// Window is the relay's. Defaults to 64.
	Window int

	// Envelope has the relay send envelopes. Defaults to false.
	Envelope bool
	// BatchSize is the publisher's. Defaults to 1.
	BatchSize int
	// NoQueues keeps the relay from declaring the queues of the services. Defaults to false.
	NoQueues bool

	// Isolation is the consumer's, as a number of package consumer. Defaults to 0, read committed.
	Isolation uint8
	// CacheSize is how many dispatch IDs the consumer remembers. Defaults to 1000.
	CacheSize int
	// InFlight and Prefetch are the subscriber's. InFlight defaults to 16, Prefetch to that of
	// package amqp.
	InFlight, Prefetch int
	// Timeout and LockTimeout are the consumer's. Default to 5 s and 500 ms.
	Timeout, LockTimeout time.Duration
	// MaxHold is the consumer's. Defaults to 10 s.
	MaxHold time.Duration
	// MaxAttempts is the relay's and the consumer's. Defaults to 10.
	MaxAttempts int
	// Memory is the window of the inbox. Defaults to that of package consumer.
	Memory time.Duration
	// ForgetInterval is the consumer's. Defaults to that of package consumer.
	ForgetInterval time.Duration
	// Retention is the janitor's. Defaults to 1 s.
	Retention time.Duration

	// Unordered has the consumer keep no order. Defaults to false.
	Unordered bool
	// Fail has the handler fail for orders whose number is a multiple of it, the first time that
	// this process sees them. Defaults to 0: never.
	Fail int
	// Doom has the handler refuse orders whose number is a multiple of it, for ever.
	// Defaults to 0: never.
	Doom int
	// Swallow has the handler swallow the error of a statement, Panic has it panic, Hang has it
	// wait until its context ends, and End has it roll its transaction back, by its statement or on
	// the connection: likewise once. They default to 0: never.
	Swallow, Panic, Hang, End int

	// Lean has the handler do nothing but add its effect: for large runs. Defaults to false.
	Lean bool
	// Group is how many messages the consumer handles in one transaction at most, each by a call
	// of its own. Defaults to 1.
	Group int
	// Set has it handle those of a transaction in one call. Needs Lean. Defaults to false.
	Set bool
	// Optimistic has the handler queue its effect for the COMMIT, and run before its claim.
	// Defaults to false.
	Optimistic bool
	// MaxSoloStarts is the consumer's. Defaults to that of package consumer.
	MaxSoloStarts int
	// Quiet has the child log nothing below a warning. Defaults to false.
	Quiet bool

	// Sample is how often the child tells how it is. Defaults to 200 ms.
	Sample time.Duration
	// GOMAXPROCS is for the child's process. Defaults to 2.
	GOMAXPROCS int
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	need := func(field, value string, needed bool) {
		if needed && value == "" {
			errs = append(errs, errors.New(field+": is required"))
		}
	}
	need("Name", c.Name, true)
	need("Dir", c.Dir, true)
	need("Topic", c.Topic, true)
	need("Outbox", c.Outbox, c.has(Producer) || c.has(Relay) || c.has(Janitor))
	need("Inbox", c.Inbox, c.has(Consumer))
	need("AMQP", c.AMQP, c.has(Relay) || c.has(Consumer))
	if c.Set && !c.Lean {
		errs = append(errs, errors.New("Lean: is required by Set"))
	}
	if len(c.Roles) == 0 {
		errs = append(errs, errors.New("Roles: are required"))
	}
	if len(c.Services) == 0 {
		c.Services = []string{"stock"}
	}
	c.Producer = cmp.Or(c.Producer, "p")
	for _, f := range []struct {
		value *int
		def   int
	}{
		{&c.Keys, 4}, {&c.Batch, 1}, {&c.Writers, 1}, {&c.Window, 64}, {&c.CacheSize, 1000}, {&c.InFlight, 16},
		{&c.MaxAttempts, 10}, {&c.GOMAXPROCS, 2}, {&c.Group, 1},
	} {
		*f.value = cmp.Or(*f.value, f.def)
	}
	for _, f := range []struct {
		value *time.Duration
		def   time.Duration
	}{
		{&c.LeaseTTL, time.Second}, {&c.SendTimeout, 2 * time.Second}, {&c.ConfirmTimeout, 2 * time.Second},
		{&c.Timeout, 5 * time.Second}, {&c.LockTimeout, 500 * time.Millisecond}, {&c.MaxHold, 10 * time.Second},
		{&c.Retention, time.Second}, {&c.Sample, 200 * time.Millisecond},
	} {
		*f.value = cmp.Or(*f.value, f.def)
	}
	return c, errors.Join(errs...)
}

func (c *Config) has(role Role) bool {
	for _, r := range c.Roles {
		if r == role {
			return true
		}
	}
	return false
}

// Topology is how the broker is used: a fanout exchange per topic and a queue per service, in the
// type that keeps what it confirmed. One consumer reads a queue at a time, or there would be no
// order.
func Topology(url, service string) wamqp.Config {
	c := amqp.DurablePubSub(url, service)
	c.Queue.Arguments = amqp091.Table{"x-single-active-consumer": true}
	c.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 50 * time.Millisecond, BackoffMultiplier: 1.5, BackoffMaxInterval: 500 * time.Millisecond,
	}
	return c
}

// QueueName is the queue of a service.
func QueueName(topic, service string) string { return topic + "_" + service }

// ConsumerName is the name under which a service's handler claims messages.
func ConsumerName(service string) string { return service + "/" + HandlerName }
