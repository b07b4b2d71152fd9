package amqp_test

import (
	"crypto/tls"
	"net/url"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport/amqp"
)

const nowhere = "amqp://nowhere.invalid"

func TestUnsafePublisherIsRefused(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*amqp.PublisherConfig){
		"AMQP.Connection.AmqpURI":   func(c *amqp.PublisherConfig) { c.AMQP.Connection.AmqpURI = "" },
		"AMQP.Connection.TLSConfig": bothTLS,
		"AMQP.Connection.AmqpConfig.Recovery": func(c *amqp.PublisherConfig) {
			c.AMQP.Connection.AmqpConfig = &amqp091.Config{Recovery: &amqp091.Recovery{}}
		},
		"AMQP.Exchange.GenerateName":      func(c *amqp.PublisherConfig) { c.AMQP.Exchange.GenerateName = nil },
		"AMQP.Exchange.Durable":           func(c *amqp.PublisherConfig) { c.AMQP.Exchange.Durable = false },
		"AMQP.Exchange.Internal":          func(c *amqp.PublisherConfig) { c.AMQP.Exchange.Internal = true },
		"AMQP.Publish.GenerateRoutingKey": func(c *amqp.PublisherConfig) { c.AMQP.Publish.GenerateRoutingKey = nil },
		"AMQP.Publish.Transactional":      func(c *amqp.PublisherConfig) { c.AMQP.Publish.Transactional = true },
		"AMQP.Publish.Immediate":          func(c *amqp.PublisherConfig) { c.AMQP.Publish.Immediate = true },
		"CloudEvents":                     func(c *amqp.PublisherConfig) { c.Envelope, c.CloudEvents = true, true },
		"Envelope":                        func(c *amqp.PublisherConfig) { c.Envelope, c.AMQP.Marshaler = true, wamqp.CorrelatingMarshaler{} },
		"BatchSize":                       func(c *amqp.PublisherConfig) { c.BatchSize = 2 },
		"AMQP.Marshaler": func(c *amqp.PublisherConfig) {
			c.AMQP.Marshaler = wamqp.DefaultMarshaler{NotPersistentDeliveryMode: true}
		},
		"AMQP.Queue": func(c *amqp.PublisherConfig) {
			c.Queues = []amqp.Queue{{Topic: "t", Name: "n"}}
			c.AMQP.Queue.Durable = false
		},
		"Queues[0].Topic": func(c *amqp.PublisherConfig) { c.Queues = []amqp.Queue{{Name: "n"}} },
		"Queues[0].Name":  func(c *amqp.PublisherConfig) { c.Queues = []amqp.Queue{{Topic: "t"}} },
		"Topology":        func(c *amqp.PublisherConfig) { c.Topology = 9 },
		"QueueType":       func(c *amqp.PublisherConfig) { c.QueueType = 9 },
		"Window":          func(c *amqp.PublisherConfig) { c.Window = -1 },
		"WindowBytes":     func(c *amqp.PublisherConfig) { c.WindowBytes = -1 },
		"ConfirmTimeout":  func(c *amqp.PublisherConfig) { c.ConfirmTimeout = -1 },
		"MaxBody":         func(c *amqp.PublisherConfig) { c.MaxBody = -1 },
	} {
		c := amqp.PublisherConfig{AMQP: amqp.DurablePubSub(nowhere, "")}
		change(&c)
		_, err := amqp.NewPublisher(c)
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s: error = %v", field, err)
		}
	}
	// All problems at once.
	_, err := amqp.NewPublisher(amqp.PublisherConfig{Window: -1})
	for _, field := range []string{"AmqpURI", "GenerateName", "GenerateRoutingKey", "Window"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error = %v; want it to name %s", err, field)
		}
	}
	loose := amqp.PublisherConfig{AMQP: wamqp.NewNonDurablePubSubConfig(nowhere, nil), QueueType: amqp.Classic, AllowLoss: true}
	if _, err := amqp.NewPublisher(loose); err != nil {
		t.Errorf("with AllowLoss: %v", err)
	}
}

func bothTLS(c *amqp.PublisherConfig) {
	c.AMQP.Connection.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13}
	c.AMQP.Connection.AmqpConfig = &amqp091.Config{TLSClientConfig: c.AMQP.Connection.TLSConfig}
}

func TestUnsafeSubscriberIsRefused(t *testing.T) {
	t.Parallel()
	with := func(name string, value any) func(*amqp.SubscriberConfig) {
		return func(c *amqp.SubscriberConfig) { c.AMQP.Queue.Arguments = amqp091.Table{name: value} }
	}
	for _, test := range []struct {
		says   string
		change func(*amqp.SubscriberConfig)
	}{
		{"AMQP.Connection.AmqpURI:", func(c *amqp.SubscriberConfig) { c.AMQP.Connection.AmqpURI = "http://x" }},
		{"AMQP.Queue.GenerateName:", func(c *amqp.SubscriberConfig) { c.AMQP.Queue.GenerateName = nil }},
		{"AMQP.Consume.NoRequeueOnNack:", func(c *amqp.SubscriberConfig) { c.AMQP.Consume.NoRequeueOnNack = true }},
		{"AMQP.Consume.Qos.PrefetchSize:", func(c *amqp.SubscriberConfig) { c.AMQP.Consume.Qos.PrefetchSize = 1 }},
		{"DeliveryLimitIsSafe:", func(c *amqp.SubscriberConfig) { c.Topology = amqp.Passive }},
		{"DeliveryLimitIsSafe:", func(c *amqp.SubscriberConfig) { c.Topology = amqp.NoTopology }},
		{"x-delivery-limit", with("x-delivery-limit", 5)},
		{"x-message-ttl", with("x-message-ttl", 5)},
		{"x-message-ttl", func(c *amqp.SubscriberConfig) { // which would dead-letter to itself
			c.AMQP.Queue.Arguments = amqp091.Table{"x-message-ttl": 5, "x-dead-letter-exchange": ""}
		}},
		{"x-max-length", with("x-max-length", 5)},
		{"x-expires", with("x-expires", 5)},
		{"stream", with("x-queue-type", "stream")},
		{"QueueType", func(c *amqp.SubscriberConfig) { c.AMQP.Queue.Exclusive = true }},
		{"AMQP.Queue.Durable:", func(c *amqp.SubscriberConfig) { c.AMQP.Queue.Durable, c.QueueType = false, amqp.Classic }},
		{"InFlight:", func(c *amqp.SubscriberConfig) { c.InFlight = -1 }},
		{"InFlight:", func(c *amqp.SubscriberConfig) { c.InFlight = 70_000 }},
		{"RedeliveryMin:", func(c *amqp.SubscriberConfig) { c.RedeliveryMin = -1 }},
		{"RedeliveryMax:", func(c *amqp.SubscriberConfig) { c.RedeliveryMin, c.RedeliveryMax = time.Minute, time.Second }},
		{"CloseTimeout:", func(c *amqp.SubscriberConfig) { c.CloseTimeout = -1 }},
	} {
		c := amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(nowhere, "consumer")}
		test.change(&c)
		if _, err := amqp.NewSubscriber(c); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: error = %v", test.says, err)
		}
	}
	safe := amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(nowhere, "consumer"), Topology: amqp.Passive, DeliveryLimitIsSafe: true}
	if _, err := amqp.NewSubscriber(safe); err != nil {
		t.Error(err)
	}
	safe = amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(nowhere, "consumer")}
	safe.AMQP.Queue.Arguments = amqp091.Table{"x-delivery-limit": 5, "x-dead-letter-exchange": "dead",
		"x-max-length": 5, "x-overflow": "reject-publish"}
	if _, err := amqp.NewSubscriber(safe); err != nil {
		t.Error(err)
	}
}

func TestUnverifiedTLSIsRefused(t *testing.T) {
	t.Parallel()
	config := amqp.DurableQueue("amqps://host")
	config.Connection.TLSConfig = &tls.Config{InsecureSkipVerify: true}
	_, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: config})
	if err == nil || !strings.Contains(err.Error(), "AMQP.Connection.TLSConfig: ") {
		t.Errorf("error = %v", err)
	}
	config.Connection.TLSConfig.VerifyConnection = func(tls.ConnectionState) error { return nil }
	if _, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: config}); err != nil {
		t.Errorf("a check of the user's own is refused: %v", err)
	}
}

// FuzzURL: whatever the URL is, nothing that is shown contains its password.
func FuzzURL(f *testing.F) {
	for _, seed := range []string{"s3cr%t-pass", "with/slash-7", "with?query-7", "with#hash-77", "with@at-sign", "12/34567890", "a b c d e f g"} {
		f.Add("amqp://app:", seed, "@host:5672/vhost", seed)
	}
	f.Add("amqp://app:", "p%40ssw0rd!", "@[::1", "p@ssw0rd!")
	f.Add("amqps://", "hunter2-hunter2", ":x@host?auth_mechanism=plain", "")
	f.Fuzz(func(t *testing.T, before, password, after, plain string) {
		uri := before + password + after
		shown := ""
		p, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurableQueue(uri)})
		if err != nil {
			shown = err.Error()
		} else {
			shown = p.Route("")
			u, err := url.Parse(uri)
			if err != nil {
				t.Fatal(err)
			}
			if set, ok := u.User.Password(); !ok || set != password && set != plain {
				return // what was meant as a password is something else in this URL
			}
		}
		const harmless = "amqp publisher: AMQP.Connection.AmqpURI: not a valid AMQP URI: want amqp://user:password@host:port/vhost, " +
			"with reserved characters of user, password and vhost percent-encoded"
		for _, secret := range []string{password, plain} {
			if len(secret) < 6 || strings.Contains(harmless, secret) || strings.Contains(before+after, secret) {
				continue
			}
			if strings.Contains(shown, secret) {
				t.Errorf("the password %q of %q is in %q", secret, uri, shown)
			}
		}
	})
}

func TestPasswordWithReservedCharactersIsNotShown(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"s3cr%t-pass", "with/slash-7", "with?query-7", "with#hash-77", "with@at-sign", "12/34567890", "with space"} {
		p, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurableQueue("amqp://app:" + password + "@host/vhost")})
		if err == nil {
			if route := p.Route("t"); strings.ContainsAny(route, "@") {
				t.Errorf("%q: route = %q", password, route)
			}
			continue
		}
		for _, part := range strings.FieldsFunc(password, func(r rune) bool { return strings.ContainsRune("%/?#@ ", r) }) {
			if len(part) > 4 && strings.Contains(strings.ReplaceAll(err.Error(), "with reserved", ""), part) {
				t.Errorf("%q: error = %v", password, err)
			}
		}
	}
}
