package amqp_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// partitionable are the configurations whose topics can be partitioned. The
// exchange of the last one is the topic's own, for the sake of other tests.
func partitionable(url, name string) map[string]wamqp.Config {
	return map[string]wamqp.Config{
		"queue":   amqp.DurableQueue(url),
		"pub-sub": amqp.DurablePubSub(url, "consumer"),
		"topic":   amqp.TopicExchange(url, name+"-exchange", "consumer"),
	}
}

// eachPartitionable runs f for each of them, with a topic of its own.
func eachPartitionable(t *testing.T, f func(t *testing.T, config wamqp.Config, topic string)) {
	t.Helper()
	for kind := range partitionable("", "") {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := topic(t)
			f(t, partitionable(testenv.AMQPURL(t), name)[kind], name)
		})
	}
}

// partitions returns the names of a consumer's queues.
func partitions(config wamqp.Config, topic string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s.%dof%d", config.Queue.GenerateName(topic), i+1, n))
	}
	return names
}

// consumed is the queue of the topic that the publisher declares.
func consumed(config wamqp.Config, topic string) []amqp.Queue {
	if config.Exchange.Type == "" {
		return nil
	}
	return []amqp.Queue{{Topic: topic, Name: config.Queue.GenerateName(topic)}}
}

func TestPartitionIsTheShardOfTheKey(t *testing.T) {
	t.Parallel()
	eachPartitionable(t, func(t *testing.T, config wamqp.Config, topic string) {
		const n = 3
		headers := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: n, Queues: consumed(config, topic)})
		envelopes := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: n, Queues: consumed(config, topic), Envelope: true})
		want := make([]int, n)
		for i := range 100 {
			p := headers
			if i%2 > 0 {
				p = envelopes
			}
			key := fmt.Sprint("key-", i/2)
			want[idgen.Shard(key, uuid.Nil)%n]++
			mustConfirm(t, p, topic, keyed(key, "x"))
			msg := newMessage("x")
			want[idgen.Shard("", uuid.MustParse(msg.UUID))%n]++
			mustConfirm(t, p, topic, msg)
		}
		mustConfirm(t, headers, topic, message.NewMessage("the ID of another library", nil))
		all := -1
		for i, name := range partitions(config, topic, n) {
			d := depth(t, testenv.AMQPURL(t), name)
			if all += d; d != want[i] && d != want[i]+1 {
				t.Errorf("%s has %d messages, want %d", name, d, want[i])
			}
		}
		if all != 200 {
			t.Errorf("%d messages", all)
		}
	})
}

func TestPartitionsAreHandedOutInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	eachPartitionable(t, func(t *testing.T, config wamqp.Config, topic string) {
		s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Partitions: 4})
		messages := subscribe(t, s, topic)
		p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: 4})
		const keys, each = 20, 10
		publishNumbered(t, p, topic, keys, 1, each)
		var h history
		for range keys * each {
			h.handle(receive(t, messages))
		}
		h.wantOrder(t, keys, each)
		ended := make(chan error)
		go func() { ended <- s.Close() }()
		if _, open := <-messages; open {
			t.Error("a message after the last")
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// publishNumbered publishes messages first to last of each key, keys taking turns.
func publishNumbered(t *testing.T, p *amqp.Publisher, topic string, keys, first, last int) {
	t.Helper()
	var batch []*message.Message
	for n := first; n <= last; n++ {
		for k := range keys {
			batch = append(batch, keyed(fmt.Sprint("key-", k), strconv.Itoa(n)))
		}
	}
	if err := p.Publish(topic, batch...); err != nil {
		t.Fatal(err)
	}
}

// history is what several consumers have handled, copies left out.
type history struct {
	mu    sync.Mutex
	seen  map[string]bool
	byKey map[string][]string
}

// handle notes a message and acknowledges it.
func (h *history) handle(msg *message.Message) {
	h.note(msg)
	msg.Ack()
}

func (h *history) note(msg *message.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen == nil {
		h.seen, h.byKey = map[string]bool{}, map[string][]string{}
	}
	if h.seen[msg.UUID] {
		return
	}
	h.seen[msg.UUID] = true
	key := msg.Metadata[transport.MetaKey]
	h.byKey[key] = append(h.byKey[key], string(msg.Payload))
}

func (h *history) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seen)
}

// wantOrder checks that messages 1 to each of all keys were handled in order.
func (h *history) wantOrder(t *testing.T, keys, each int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range keys {
		found := h.byKey[fmt.Sprint("key-", k)]
		if len(found) != each {
			t.Errorf("key-%d: %d messages, want %d: %v", k, len(found), each, found)
			continue
		}
		for i, payload := range found {
			if payload != strconv.Itoa(i+1) {
				t.Errorf("key-%d: out of order: %v", k, found)
				break
			}
		}
	}
}

// TestPartitionsFailOverInOrder takes the connection from a consumer that has messages
// in flight, some of them acknowledged. Another one goes on where it was.
func TestPartitionsFailOverInOrder(t *testing.T) {
	t.Parallel()
	for name, queueType := range map[string]amqp.QueueType{"quorum": amqp.Quorum, "classic": amqp.Classic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name, config := topic(t), amqp.DurablePubSub(testenv.AMQPURL(t), "consumer")
			const keys, each = 16, 20
			sc := amqp.SubscriberConfig{AMQP: config, Partitions: 4, QueueType: queueType, InFlight: 64, RebalanceInterval: time.Hour}
			quickly(&sc.AMQP)
			dying := sc
			w := wired(&dying.AMQP)
			owner, successor := newSubscriber(t, dying), newSubscriber(t, sc)
			first := subscribe(t, owner, name)
			awaitConsuming(t, owner, 4)
			second := subscribe(t, successor, name)
			awaitConsuming(t, successor, 4) // so that the broker could give it something
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: 4, QueueType: queueType})
			publishNumbered(t, p, name, keys, 1, each)
			var h history
			held := 0
			for range keys * each / 4 {
				msg := receive(t, first)
				if h.note(msg); len(msg.Metadata[transport.MetaKey]) == len("key-10") {
					held++ // handled, and its acknowledgement is lost
					continue
				}
				msg.Ack()
			}
			if held == 0 {
				t.Error("nothing was in flight")
			}
			none(t, second) // as long as the first is there
			w.fall()
			for h.len() < keys*each {
				h.handle(receive(t, second))
			}
			h.wantOrder(t, keys, each)
		})
	}
}

// TestProcessesShareThePartitions: the broker leaves all queues to the first consumer.
func TestProcessesShareThePartitions(t *testing.T) {
	t.Parallel()
	for name, queueType := range map[string]amqp.QueueType{"quorum": amqp.Quorum, "classic": amqp.Classic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name, config := topic(t), amqp.DurablePubSub(testenv.AMQPURL(t), "consumer")
			const processes, count, keys = 3, 6, 40
			var h history
			var mu sync.Mutex
			owners, moves := map[string]int{}, map[string]int{}
			var work sync.WaitGroup
			t.Cleanup(work.Wait)
			for i := range processes {
				s := newSubscriber(t, amqp.SubscriberConfig{
					AMQP: config, Partitions: count, QueueType: queueType, RebalanceInterval: 50 * time.Millisecond,
				})
				messages := subscribe(t, s, name)
				work.Go(func() {
					for msg := range messages {
						key := msg.Metadata[transport.MetaKey]
						partition := fmt.Sprint(idgen.Shard(key, uuid.Nil) % count)
						mu.Lock()
						if owner, ok := owners[partition]; ok && owner != i {
							moves[partition]++
						}
						owners[partition] = i
						mu.Unlock()
						h.handle(msg)
					}
				})
			}
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: count, QueueType: queueType})
			rounds := 0
			await(t, "two partitions for each process", func() bool {
				rounds++
				publishNumbered(t, p, name, keys, rounds, rounds)
				mu.Lock()
				defer mu.Unlock()
				var has [processes]int
				for _, owner := range owners {
					has[owner]++
				}
				return has == [processes]int{2, 2, 2}
			})
			publishNumbered(t, p, name, keys, rounds+1, rounds+20)
			await(t, "all messages", func() bool { return h.len() == keys*(rounds+20) })
			h.wantOrder(t, keys, rounds+20)
			mu.Lock()
			defer mu.Unlock()
			t.Logf("%d rounds, moves by partition: %v", rounds, moves)
		})
	}
}

func TestAnotherNumberOfPartitionsIsRefused(t *testing.T) {
	t.Parallel()
	eachPartitionable(t, func(t *testing.T, config wamqp.Config, topic string) {
		if err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Partitions: 4}).SubscribeInitialize(topic); err != nil {
			t.Fatal(err)
		}
		queue := strconv.Quote(config.Queue.GenerateName(topic))
		for _, n := range []int{8, 3} {
			_, err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Partitions: n}).Subscribe(t.Context(), topic)
			if !errors.Is(err, amqp.ErrPartitions) || !strings.Contains(err.Error(), queue) {
				t.Errorf("a subscriber of %d: %v", n, err)
			}
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: n, Queues: consumed(config, topic)})
			wantOutcome(t, send(t, p, topic, keyed("key", "x")), transport.Unavailable, amqp.ErrPartitions)
		}
		_, err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config}).Subscribe(t.Context(), topic)
		if err == nil || !strings.Contains(err.Error(), "Partitions") {
			t.Errorf("a subscriber without partitions: %v", err)
		}
		p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Queues: consumed(config, topic)})
		r := send(t, p, topic, keyed("key", "x"))
		wantOutcome(t, r, transport.Unavailable, nil)
		if !strings.Contains(r.Err.Error(), "Partitions") {
			t.Errorf("a publisher without partitions: %v", r.Err)
		}
	})
}

func TestPartitionsOfATopicWithoutThemAreRefused(t *testing.T) {
	t.Parallel()
	eachPartitionable(t, func(t *testing.T, config wamqp.Config, topic string) {
		if err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config}).SubscribeInitialize(topic); err != nil {
			t.Fatal(err)
		}
		_, err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Partitions: 4}).Subscribe(t.Context(), topic)
		if !errors.Is(err, amqp.ErrPartitions) {
			t.Errorf("a subscriber: %v", err)
		}
		// A publisher that knows no queue is told by the exchange, or by the broker
		// that has no route.
		p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: 4})
		if r := send(t, p, topic, keyed("key", "x")); r.Outcome == transport.Confirmed {
			t.Error("a publisher: confirmed")
		}
	})
}

// TestMessageInTheQueueOfTheNumberIsReported: a publisher that neither partitions nor
// declares cannot be stopped.
func TestMessageInTheQueueOfTheNumberIsReported(t *testing.T) {
	t.Parallel()
	name, config := topic(t), amqp.DurableQueue(testenv.AMQPURL(t))
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Partitions: 2})
	if err := s.SubscribeInitialize(name); err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Topology: amqp.NoTopology})
	mustConfirm(t, p, name, newMessage("stray"))
	if _, err := s.Subscribe(t.Context(), name); err == nil || !strings.Contains(err.Error(), "does not partition") {
		t.Errorf("error = %v", err)
	}
}

func TestMissingPartitionIsReturnedAndDeclaredAgain(t *testing.T) {
	t.Parallel()
	name, url := topic(t), testenv.AMQPURL(t)
	config := amqp.DurablePubSub(url, "consumer")
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: 2, Queues: consumed(config, name)})
	even, odd := "", ""
	for i := 0; even == "" || odd == ""; i++ {
		if key := fmt.Sprint(i); idgen.Shard(key, uuid.Nil)%2 == 0 {
			even = key
		} else {
			odd = key
		}
	}
	mustConfirm(t, p, name, keyed(even, "x"))
	if _, err := channel(t, url).QueueDelete(partitions(config, name, 2)[0], false, false, false); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, send(t, p, name, keyed(even, "x")), transport.Returned, amqp.ErrUnroutable)
	mustConfirm(t, p, name, keyed(odd, "x"))
	await(t, "the partition again", func() bool { return send(t, p, name, keyed(even, "x")).Outcome == transport.Confirmed })
}

func TestUnsafePartitionsAreRefused(t *testing.T) {
	t.Parallel()
	both := func(change func(*wamqp.Config)) func(*amqp.PublisherConfig, *amqp.SubscriberConfig) {
		return func(p *amqp.PublisherConfig, s *amqp.SubscriberConfig) { change(&p.AMQP); change(&s.AMQP) }
	}
	for _, test := range []struct {
		says      string
		publisher bool // or the subscriber only
		change    func(*amqp.PublisherConfig, *amqp.SubscriberConfig)
	}{
		{"Partitions: 65 ", true, func(p *amqp.PublisherConfig, s *amqp.SubscriberConfig) { p.Partitions, s.Partitions = 65, 65 }},
		{"Partitions: -1 ", true, func(p *amqp.PublisherConfig, s *amqp.SubscriberConfig) { p.Partitions, s.Partitions = -1, -1 }},
		{"AMQP.Exchange.Type:", true, both(func(c *wamqp.Config) { c.Exchange.Type = amqp091.ExchangeDirect })},
		{"AMQP.Exchange.Type:", true, both(func(c *wamqp.Config) { c.Exchange.Type = amqp091.ExchangeHeaders })},
		{"AMQP.Queue: ", true, both(func(c *wamqp.Config) { c.Queue.AutoDelete = true })},
		{"x-single-active-consumer", true, both(func(c *wamqp.Config) {
			c.Queue.Arguments = amqp091.Table{"x-single-active-consumer": false}
		})},
		{"stream", true, both(func(c *wamqp.Config) { c.Queue.Arguments = amqp091.Table{"x-queue-type": "stream"} })},
		{"AMQP.TopologyBuilder:", true, both(func(c *wamqp.Config) { c.TopologyBuilder = &builder{} })},
		{"AMQP.Consume.Exclusive:", false, both(func(c *wamqp.Config) { c.Consume.Exclusive = true })},
		{"CompetingConsumers:", true, func(p *amqp.PublisherConfig, s *amqp.SubscriberConfig) {
			p.CompetingConsumers, s.CompetingConsumers = true, true
		}},
		{"RebalanceInterval:", false, func(_ *amqp.PublisherConfig, s *amqp.SubscriberConfig) { s.RebalanceInterval = -1 }},
	} {
		config := amqp.DurablePubSub(nowhere, "consumer")
		p := amqp.PublisherConfig{AMQP: config, Partitions: 4, Queues: []amqp.Queue{{Topic: "t"}}}
		s := amqp.SubscriberConfig{AMQP: config, Partitions: 4}
		test.change(&p, &s)
		if _, err := amqp.NewPublisher(p); test.publisher && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: publisher: %v", test.says, err)
		}
		if _, err := amqp.NewSubscriber(s); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: subscriber: %v", test.says, err)
		}
	}
	for says, q := range map[string]amqp.Queue{
		"Queues[0].Partitions: 65": {Topic: "t", Partitions: 65},
		"Queues[0].BindingKey":     {Topic: "t", BindingKey: "key"},
	} {
		_, err := amqp.NewPublisher(amqp.PublisherConfig{
			AMQP: amqp.DurablePubSub(nowhere, "consumer"), Partitions: 4, Queues: []amqp.Queue{q},
		})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	_, err := amqp.NewPublisher(amqp.PublisherConfig{
		AMQP: amqp.DurablePubSub(nowhere, "consumer"), Queues: []amqp.Queue{{Topic: "t", Partitions: 4}},
	})
	if err == nil || !strings.Contains(err.Error(), "Queues[0].Partitions") {
		t.Errorf("partitions of a queue only: %v", err)
	}
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.TopicExchange(nowhere, "events", "consumer"), Partitions: 4})
	if _, err := s.Subscribe(t.Context(), "order.#"); err == nil || !strings.Contains(err.Error(), "pattern") {
		t.Errorf("a pattern: %v", err)
	}
}

// builder is somebody's own topology.
type builder struct{ wamqp.DefaultTopologyBuilder }
