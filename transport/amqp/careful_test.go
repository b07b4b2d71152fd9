package amqp_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
	"github.com/boxpair/boxpair/transport/signature"
)

func TestFormatOfALaterVersionIsUnreadable(t *testing.T) {
	t.Parallel()
	later := amqp091.Publishing{
		ContentEncoding: "boxpair2", MessageId: "6f2c1a1e-1f7e-5d0b-9d7e-3f0f5c1d2e3a", DeliveryMode: amqp091.Persistent, Body: []byte("x"),
	}
	t.Run("default marshaler", func(t *testing.T) {
		t.Parallel()
		name, config := topic(t), amqp.SubscriberConfig{AMQP: amqp.DurableQueue(testenv.AMQPURL(t))}
		put(t, config, name, later)
		msg := receive(t, subscribe(t, newSubscriber(t, config), name))
		if _, err := transport.Parse(name, msg); err == nil {
			t.Errorf("%q is read as an event", msg.Payload)
		}
		msg.Ack()
	})
	t.Run("another marshaler", func(t *testing.T) {
		t.Parallel()
		url, name := testenv.AMQPURL(t), topic(t)
		config := amqp.SubscriberConfig{AMQP: correlating(url)}
		put(t, config, name, later)
		messages := subscribe(t, newSubscriber(t, config), name)
		await(t, "set aside", func() bool { return depth(t, url, name+".undecodable") == 1 })
		none(t, messages)
	})
}

func TestMessageWhoseKeyPanicsIsSetAside(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	config := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), Key: func(msg *message.Message) string {
		return string(msg.Payload[0])
	}}
	fill(t, config.AMQP, amqp.Quorum, name, newMessage(""), newMessage("x"))
	take(t, subscribe(t, newSubscriber(t, config), name), "x")
	await(t, "set aside", func() bool { return depth(t, url, name+".undecodable") == 1 })
}

func TestQueueMayHaveTheLongestName(t *testing.T) {
	t.Parallel()
	config := amqp.DurableQueue(testenv.AMQPURL(t))
	name := topic(t)
	name += strings.Repeat("x", 255-len(name))
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config})
	messages := subscribe(t, s, name)
	mustConfirm(t, newPublisher(t, amqp.PublisherConfig{AMQP: config}), name, newMessage("x"))
	take(t, messages, "x")
	if _, err := s.Subscribe(t.Context(), name+"x"); err == nil {
		t.Error("subscribed to a queue of 256 bytes")
	}
}

// TestNameWithALineBreakIsRefused: RabbitMQ declares the queue without it, and finds none with it.
func TestNameWithALineBreakIsRefused(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t) + "\nbreak"
	for kind, config := range map[string]wamqp.Config{
		"queue": amqp.DurableQueue(url), "exchange": amqp.DurablePubSub(url, "service"),
	} {
		r := send(t, newPublisher(t, amqp.PublisherConfig{AMQP: config}), name, newMessage("x"))
		wantOutcome(t, r, transport.Invalid, nil)
		_, err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config}).Subscribe(t.Context(), name)
		for _, err := range []error{r.Err, err} {
			if err == nil || !strings.Contains(err.Error(), strconv.Quote(name)) {
				t.Errorf("%s: error = %v", kind, err)
			}
		}
	}
	_, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurablePubSub(url, "service"), Queues: []amqp.Queue{{Topic: "t", Name: name}}})
	if err == nil || !strings.Contains(err.Error(), "Queues[0].Name: ") {
		t.Errorf("error = %v", err)
	}
}

func TestMessageThatWouldExpireIsInvalid(t *testing.T) {
	t.Parallel()
	config := amqp.DurableQueue(testenv.AMQPURL(t))
	config.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(pub amqp091.Publishing) amqp091.Publishing {
		pub.Expiration = "1000"
		return pub
	}}
	name := topic(t)
	r := send(t, newPublisher(t, amqp.PublisherConfig{AMQP: config}), name, newMessage("x"))
	wantOutcome(t, r, transport.Invalid, nil)
	mustConfirm(t, newPublisher(t, amqp.PublisherConfig{AMQP: config, AllowLoss: true}), name, newMessage("x"))
}

func TestPanicOfWhatTheUserGaveIsTheErrorOfItsMessage(t *testing.T) {
	t.Parallel()
	panics := func(name string) { panic("secret " + name) }
	for name, cfg := range map[string]func(*amqp.PublisherConfig){
		"marshaler": func(cfg *amqp.PublisherConfig) {
			cfg.AMQP.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(pub amqp091.Publishing) amqp091.Publishing {
				if string(pub.Body) == "bad" {
					panics("marshaler")
				}
				return pub
			}}
		},
		"key": func(cfg *amqp.PublisherConfig) {
			cfg.AMQP, cfg.Partitions = amqp.DurablePubSub(testenv.AMQPURL(t), "service"), 2
			cfg.Key = func(msg *message.Message) string {
				if string(msg.Payload) == "bad" {
					panics("key")
				}
				return "key"
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := amqp.PublisherConfig{AMQP: amqp.DurableQueue(testenv.AMQPURL(t))}
			cfg(&c)
			p, topic := newPublisher(t, c), topic(t)
			if c.Partitions > 0 {
				sub := newSubscriber(t, amqp.SubscriberConfig{AMQP: c.AMQP, Partitions: c.Partitions, Key: c.Key})
				if err := sub.SubscribeInitialize(topic); err != nil {
					t.Fatal(err)
				}
			}
			r := send(t, p, topic, newMessage("bad"))
			wantOutcome(t, r, transport.Invalid, nil)
			if text := r.Err.Error(); !strings.Contains(text, "panicked with a string") || strings.Contains(text, "secret") {
				t.Errorf("error = %q", text)
			}
			mustConfirm(t, p, topic, newMessage("good"))
		})
	}
}

func TestDeadLetterExchangeThatIsMissingIsRefused(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	config := amqp.DurableQueue(url)
	config.Queue.Arguments = amqp091.Table{"x-dead-letter-exchange": name + "-dead"}
	_, err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config}).Subscribe(t.Context(), name)
	if err == nil || !strings.Contains(err.Error(), name+"-dead") {
		t.Errorf("error = %v", err)
	}
	if err := channel(t, url).ExchangeDeclare(name+"-dead", "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name)
}

func TestDeadLetterQueueThatIsMissingIsRefused(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	config := amqp.DurableQueue(url)
	config.Queue.Arguments = amqp091.Table{"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + "-dead"}
	_, err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config}).Subscribe(t.Context(), name)
	if err == nil || !strings.Contains(err.Error(), name+"-dead") {
		t.Errorf("error = %v", err)
	}
	declareQuorum(t, url, name+"-dead", nil)
	subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name)
}

// TestPublishOfManyWaitsForOneTimeout while there is no connection.
func TestPublishOfManyWaitsForOneTimeout(t *testing.T) {
	t.Parallel()
	config := amqp.DurableQueue(testenv.AMQPURL(t))
	w := wired(&config)
	w.hold()
	defer w.pass()
	const timeout = 500 * time.Millisecond
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, ConfirmTimeout: timeout})
	var messages []*message.Message
	for range 200 {
		messages = append(messages, newMessage("x"))
	}
	begin := time.Now()
	if err := p.Publish(topic(t), messages...); err == nil {
		t.Error("published without a connection")
	}
	if d := time.Since(begin); d > 100*timeout {
		t.Errorf("Publish took %v", d)
	}
}

// TestSignedMessageIsVerifiedBehindAStockSubscriber, which hands on whatever headers there are.
func TestSignedMessageIsVerifiedBehindAStockSubscriber(t *testing.T) {
	t.Parallel()
	name := topic(t)
	config := wamqp.NewDurablePubSubConfig(testenv.AMQPURL(t), wamqp.GenerateQueueNameTopicNameWithSuffix("consumer"))
	stock, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stock.Close() })
	messages := subscribe(t, stock, name)
	key := signature.Key{ID: "1", Secret: bytes.Repeat([]byte("s"), signature.MinSecret)}
	signer, err := signature.NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := signature.NewVerifier(key)
	if err != nil {
		t.Fatal(err)
	}
	e := event(name)
	mustConfirm(t, signer.Sender(newPublisher(t, amqp.PublisherConfig{AMQP: config, AllHeaders: true})), name, e.Message())
	msg := receive(t, messages)
	msg.Ack()
	if _, err := verifier.Verify(name, msg); err != nil {
		t.Errorf("%v; metadata %v", err, msg.Metadata)
	}
}

func TestQueueIsSubscribedToOnce(t *testing.T) {
	t.Parallel()
	name := topic(t)
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(testenv.AMQPURL(t), "service")})
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := s.Subscribe(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Subscribe(t.Context(), name)
	if err == nil || !strings.Contains(err.Error(), name+"_service") || !strings.Contains(err.Error(), "GenerateName") {
		t.Errorf("a second handler: %v", err)
	}
	subscribe(t, s, name+"-other")
	cancel()
	for range messages {
		t.Error("a message")
	}
	subscribe(t, s, name) // after the end of the first one
}

// lines are what a logger has written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) contain(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), part)
}

func TestConsumersOfOneQueueAreAllWarned(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	declareQuorum(t, url, name, nil) // as another program does
	const warning = "several consumers"
	var logs [2]lines
	for i := range logs {
		if i == 1 && logs[0].contain(warning) {
			t.Errorf("the only one was warned: %s", logs[0].text.String())
		}
		s := newSubscriber(t, amqp.SubscriberConfig{
			AMQP: amqp.DurableQueue(url), RebalanceInterval: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&logs[i], nil)),
		})
		subscribe(t, s, name)
		await(t, "consuming", func() bool { return logs[i].contain("consuming") })
	}
	for i := range logs {
		await(t, "a warning with all remedies", func() bool {
			return logs[i].contain(warning) && logs[i].contain("Partitions") && logs[i].contain("x-single-active-consumer") && logs[i].contain("CompetingConsumers") &&
				logs[i].contain("declared without a single active consumer")
		})
	}
}

// TestOneProcessOfAConsumerIsActiveUntilAnotherTakesOver with all messages in their order, those that
// the first one had not acknowledged included.
func TestOneProcessOfAConsumerIsActiveUntilAnotherTakesOver(t *testing.T) {
	t.Parallel()
	for _, kind := range []amqp.QueueType{amqp.Quorum, amqp.Classic} {
		text, _ := kind.MarshalText()
		t.Run(string(text), func(t *testing.T) {
			t.Parallel()
			name, config := topic(t), amqp.DurableQueue(testenv.AMQPURL(t))
			const messages = 200
			var processes [2]*amqp.Subscriber
			var subscribed [2]<-chan *message.Message
			for i := range processes {
				processes[i] = newSubscriber(t, amqp.SubscriberConfig{AMQP: config, QueueType: kind, InFlight: 8, CloseTimeout: publishCall})
				subscribed[i] = subscribe(t, processes[i], name)
			}
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, QueueType: kind})
			if err := p.Publish(name, numbered("key", messages)...); err != nil {
				t.Fatal(err)
			}
			next := 1
			handle := func(msg *message.Message) {
				t.Helper()
				if string(msg.Payload) != strconv.Itoa(next) {
					t.Fatalf("message %s, want %d", msg.Payload, next)
				}
				next++
				msg.Ack()
			}
			for next <= messages/2 {
				select {
				case msg := <-subscribed[0]:
					handle(msg)
				case msg := <-subscribed[1]:
					t.Fatalf("the other process has got %s", msg.Payload)
				}
			}
			if err := processes[0].Close(); err != nil {
				t.Fatal(err)
			}
			for next <= messages {
				handle(receive(t, subscribed[1]))
			}
		})
	}
}

func TestCompetingConsumersShareAQueueAndKeepNoOrder(t *testing.T) {
	t.Parallel()
	name, config := topic(t), amqp.DurableQueue(testenv.AMQPURL(t))
	var logs lines
	var subscribed [2]<-chan *message.Message
	for i := range subscribed {
		s := newSubscriber(t, amqp.SubscriberConfig{
			AMQP: config, CompetingConsumers: true, InFlight: 1, Prefetch: 1, RebalanceInterval: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
		})
		subscribed[i] = subscribe(t, s, name)
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, CompetingConsumers: true})
	if err := p.Publish(name, numbered("key", 2)...); err != nil {
		t.Fatal(err)
	}
	for i := range subscribed { // both at once
		msg := receive(t, subscribed[i])
		if key, told := transport.OrderingKey(msg.Context()); !told || key != "" {
			t.Errorf("ordered by %q, %v", key, told)
		}
		defer msg.Ack()
	}
	if logs.contain("WARN") {
		t.Errorf("log: %s", logs.text.String())
	}
}

// TestQueueIsUsedWithTheConsumersThatItWasDeclaredWith, and its consumer says so.
func TestQueueIsUsedWithTheConsumersThatItWasDeclaredWith(t *testing.T) {
	t.Parallel()
	for _, competing := range []bool{true, false} {
		t.Run(strconv.FormatBool(competing), func(t *testing.T) {
			t.Parallel()
			name, config := topic(t), amqp.DurableQueue(testenv.AMQPURL(t))
			var logs [2]lines
			logger := func(i int) *slog.Logger { return slog.New(slog.NewTextHandler(&logs[i], nil)) }
			first := newPublisher(t, amqp.PublisherConfig{AMQP: config, CompetingConsumers: competing})
			mustConfirm(t, first, name, newMessage("1"))
			second := newPublisher(t, amqp.PublisherConfig{AMQP: config, CompetingConsumers: !competing, Logger: logger(0)})
			mustConfirm(t, second, name, newMessage("2"))
			s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, CompetingConsumers: !competing, Logger: logger(1)})
			take(t, subscribe(t, s, name), "1", "2")
			if logs[0].contain("WARN") || !logs[0].contain("x-single-active-consumer") {
				t.Errorf("the publisher says: %s", logs[0].text.String())
			}
			want := map[bool]string{true: "declared without a single active consumer", false: "CompetingConsumers has no effect"}[competing]
			if !logs[1].contain(want) {
				t.Errorf("the subscriber says: %s", logs[1].text.String())
			}
		})
	}
}

// TestExistingQueueIsDeclaredByManyAtOnce, as the partitions of a topic declare what they share.
func TestExistingQueueIsDeclaredByManyAtOnce(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	declareQuorum(t, url, name, nil)
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), Logger: slog.New(slog.DiscardHandler)})
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 10 {
				if err := s.SubscribeInitialize(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
