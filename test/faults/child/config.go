package child

import (
	"cmp"
	"errors"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/boxpair/boxpair/transport/amqp"
)

// Role is a job of a child.
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

// Config sets the work of a child. Durations are short by default, so that tests are fast.
type Config struct {
	// Name distinguishes children, and is the prefix of their files. Required.
	Name string
	// Roles are the child's jobs. Required.
	Roles []Role
	// Program is the program that runs as the child. Defaults to this program.
	Program string `json:"-"`
	// Dir is the directory of the child's logs. Required.
	Dir string

	// Outbox is the URL of the database of the producer, the relay and the janitor, with a
	// password. The role replaces the user: see [Role.Login]. Required by these roles.
	Outbox string
	// Inbox is the URL of the consumer's database, used like Outbox. Required by consumers.
	Inbox string
	// AMQP is the URL of the broker. Required by relays and consumers.
	AMQP string
	// Topic is the topic of the orders' events. Required.
	Topic string
	// Services are the consumers, with one queue each; a consumer process runs all of them.
	// Defaults to "stock".
	Services []string
	// Keys is the number of keys. Defaults to 4.
	Keys int

	// Producer is the prefix of the orders' names. Concurrent producers need different prefixes.
	// Defaults to "p".
	Producer string
	// Orders is the number of orders to place. Defaults to 0: no limit.
	Orders int
	// Batch is the number of orders in one transaction. Defaults to 1.
	Batch int
	// Writers is the number of concurrent transactions. Defaults to 1.
	Writers int
	// Pause is the time between two transactions of a writer. Defaults to 0.
	Pause time.Duration
	// Queue writes events just before the commit, instead of at once. Defaults to false.
	Queue bool
	// PayloadBytes is the minimal size of payloads. Defaults to 0.
	PayloadBytes int
	// Bulk places the orders of a transaction in one statement, and waits while the brake is on:
	// for large runs. Defaults to false.
	Bulk bool
	// Huge gives every order whose number is a multiple of Huge a payload that the relay's
	// publisher refuses for ever. Defaults to 0: never.
	Huge int

	// LeaseTTL is the relay's setting. Defaults to 1 s.
	LeaseTTL time.Duration
	// SendTimeout is the relay's setting, and ConfirmTimeout the publisher's. Both default to 2 s.
	SendTimeout, ConfirmTimeout time.Duration
	// Window is the relay's setting. Defaults to 64.
	Window int

	// Envelope makes the relay send envelopes. Defaults to false.
	Envelope bool
	// BatchSize is the publisher's setting. Defaults to 1.
	BatchSize int
	// NoQueues keeps the relay from declaring the queues of the services. Defaults to false.
	NoQueues bool

	// Isolation is the consumer's setting, as a number of package consumer. Defaults to 0, read
	// committed.
	Isolation uint8
	// CacheSize is how many dispatch IDs the consumer remembers. Defaults to 1000.
	CacheSize int
	// InFlight and Prefetch are the subscriber's settings. InFlight defaults to 16, Prefetch to the
	// default of package amqp.
	InFlight, Prefetch int
	// Timeout and LockTimeout are the consumer's settings. They default to 5 s and 500 ms.
	Timeout, LockTimeout time.Duration
	// MaxHold is the consumer's setting. Defaults to 10 s.
	MaxHold time.Duration
	// MaxAttempts is the setting of the relay and of the consumer. Defaults to 10.
	MaxAttempts int
	// Memory is the retention of the inbox. Defaults to the default of package consumer.
	Memory time.Duration
	// ForgetInterval is the consumer's setting. Defaults to the default of package consumer.
	ForgetInterval time.Duration
	// Retention is the janitor's setting. Defaults to 1 s.
	Retention time.Duration
	// Archive is the directory in which the janitor, the only role then, keeps what it removes.
	// Defaults to none.
	Archive string

	// Unordered makes the consumer keep no order. Defaults to false.
	Unordered bool
	// Fail makes the handler fail for orders whose number is a multiple of Fail, once per order and
	// process. Defaults to 0: never.
	Fail int
	// Doom makes the handler refuse orders whose number is a multiple of Doom, for ever. Defaults
	// to 0: never.
	Doom int
	// Swallow makes the handler swallow the error of a statement, Panic makes it panic, Hang makes
	// it wait until its context ends, and End makes it roll its transaction back, by its statement
	// or on the connection: each once, like Fail. They default to 0: never.
	Swallow, Panic, Hang, End int

	// Lean makes the handler only add its effect: for large runs. Defaults to false.
	Lean bool
	// Group is the maximal number of messages in one transaction of the consumer, with a call of
	// the handler for each message. Defaults to 1.
	Group int
	// Set makes the handler take all messages of a transaction in one call. Needs Lean. Defaults to
	// false.
	Set bool
	// Optimistic makes the handler queue its effect for the COMMIT, and run before its claim.
	// Defaults to false.
	Optimistic bool
	// StoreFirst makes the consumer store messages, acknowledge them at once, and run them from its
	// database. Defaults to false.
	StoreFirst bool
	// MaxSoloStarts is the consumer's setting. Defaults to the default of package consumer.
	MaxSoloStarts int
	// Quiet makes the child log only warnings and errors. Defaults to false.
	Quiet bool

	// Sample is the time between two reports of the child's state. Defaults to 200 ms.
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

// Topology returns the topology of the broker: a fanout exchange per topic and a quorum queue per
// service.
func Topology(url, service string) wamqp.Config {
	c := amqp.DurablePubSub(url, service)
	c.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 50 * time.Millisecond, BackoffMultiplier: 1.5, BackoffMaxInterval: 500 * time.Millisecond,
	}
	return c
}

// QueueName returns the name of a service's queue.
func QueueName(topic, service string) string { return topic + "_" + service }

// ConsumerName returns the name under which a service's handler claims messages.
func ConsumerName(service string) string { return service + "/" + HandlerName }
