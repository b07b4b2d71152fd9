package memory_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

func TestSlowHandlerDelaysNoOtherKeyOfItsTopic(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	slow := send(b, "orders", keyed("slow"))
	stuck := receive(t, messages)
	behind := send(b, "orders", keyed("slow"))
	for range 200 { // far more than may be in flight
		results := send(b, "orders", keyed("fast"))
		receive(t, messages).Ack()
		wantOutcome(t, results, transport.Confirmed)
	}
	empty(t, slow)
	empty(t, behind)
	stuck.Ack()
	receive(t, messages).Ack()
	wantOutcome(t, slow, transport.Confirmed)
	wantOutcome(t, behind, transport.Confirmed)
}

func TestMessageSaysTheKeyThatItIsOrderedBy(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	for _, want := range []string{"k", ""} {
		results := send(b, "orders", keyed(want))
		msg := receive(t, messages)
		if key, ok := transport.OrderingKey(msg.Context()); !ok || key != want {
			t.Errorf("ordered by %q, %v, want %q", key, ok, want)
		}
		msg.Ack()
		wantOutcome(t, results, transport.Confirmed)
	}
}

func TestHotKeyDelaysNoOtherKey(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{InFlight: 2})
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	for range 10_000 {
		send(b, "orders", keyed("hot"))
	}
	results := send(b, "orders", keyed("cold"))
	for range 3 { // the head of hot, at most one more of it, cold
		msg := receive(t, messages)
		msg.Ack()
		if msg.Metadata.Get(transport.MetaKey) == "cold" {
			wantOutcome(t, results, transport.Confirmed)
			return
		}
	}
	t.Error("one message of another key waits behind ten thousand")
}

func TestSubscribeOnOneTopicDelaysNoOther(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	orders := subscribe(t, b.Subscriber("stock"), "orders")
	payments := subscribe(t, b.Subscriber("stock"), "payments")
	send(b, "orders", keyed("k"))
	receive(t, orders) // and leave it unanswered
	subscribe(t, b.Subscriber("stock"), "orders")
	subscribe(t, b.Subscriber("mail"), "orders")
	results := send(b, "payments", keyed("k"))
	receive(t, payments).Ack()
	wantOutcome(t, results, transport.Confirmed)
}

func TestSubscribeCallsOfOneNameShareTheWork(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{InFlight: 1})
	const consumers, total = 4, 400
	var seen sync.Map
	var busy sync.WaitGroup // until every consumer has a message
	busy.Add(consumers)
	for range consumers {
		var first sync.Once
		handle(t, subscribe(t, b.Subscriber("stock"), "orders"), func(msg *message.Message) {
			if _, twice := seen.LoadOrStore(msg.UUID, true); twice {
				t.Errorf("%s was handed out twice", msg.UUID)
			}
			first.Do(func() {
				busy.Done()
				busy.Wait()
			})
			msg.Ack()
		})
	}
	msgs := make([]*message.Message, total)
	for i := range msgs {
		msgs[i] = keyed(strconv.Itoa(i))
	}
	if err := b.Publish("orders", msgs...); err != nil {
		t.Fatal(err)
	}
	for _, msg := range msgs {
		if _, ok := seen.Load(msg.UUID); !ok {
			t.Errorf("%s was confirmed and not handed out", msg.UUID)
		}
	}
}

func TestEveryNameGetsItsOwnCopy(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	stock := subscribe(t, b.Subscriber("stock"), "orders")
	mail := subscribe(t, b.Subscriber("mail"), "orders")
	sent := keyed("k")
	results := send(b, "orders", sent)
	one, two := receive(t, stock), receive(t, mail)
	if one == two || one == sent || two == sent {
		t.Fatal("a message is shared")
	}
	one.Metadata.Set("mark", "stock")
	if two.Metadata.Get("mark") != "" || sent.Metadata.Get("mark") != "" {
		t.Error("metadata is shared")
	}
	if !two.Equals(sent) {
		t.Error("the copy differs")
	}
	one.Ack()
	two.Ack()
	wantOutcome(t, results, transport.Confirmed)
}

func TestIdleConsumerTakesWhatABusyOneDoesNotRead(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	deaf := subscribe(t, b.Subscriber("stock"), "orders") // never read
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	const total = 100
	for i := range total {
		send(b, "orders", keyed(strconv.Itoa(i)))
	}
	for range total - 1 { // one may be on offer to the other
		receive(t, messages).Ack()
	}
	_ = deaf
}

func TestTwoMessagesAtOnceWakeTwoConsumers(t *testing.T) {
	t.Parallel()
	for range 200 { // whether one has looked before the second comes is up to the scheduler
		synctest.Test(t, func(t *testing.T) {
			b := newBroker(t, memory.Config{InFlight: 1})
			one := subscribe(t, b.Subscriber("stock"), "orders")
			two := subscribe(t, b.Subscriber("stock"), "orders")
			synctest.Wait()
			send(b, "orders", keyed("a"))
			send(b, "orders", keyed("b"))
			first, second := receive(t, one), receive(t, two)
			first.Ack()
			second.Ack()
		})
	}
}

func TestNoMoreThanInFlightAreHandedOut(t *testing.T) {
	t.Parallel()
	const limit = 3
	b := newBroker(t, memory.Config{InFlight: limit})
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	for range 10 {
		send(b, "orders", keyed(""))
	}
	var held []*message.Message
	for range limit {
		held = append(held, receive(t, messages))
	}
	select {
	case <-messages:
		t.Errorf("more than %d in flight", limit)
	case <-time.After(20 * time.Millisecond):
	}
	for range 10 - limit {
		held[0].Ack()
		held = append(held[1:], receive(t, messages))
	}
	for _, msg := range held {
		msg.Ack()
	}
}

// The order of each key must survive nacks, many consumers and consumers that
// come and go.
func TestOrderOfAKeySurvivesNacksAndConsumersThatComeAndGo(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{
		MinRedelivery: time.Microsecond,
		MaxRedelivery: time.Millisecond,
		CloseTimeout:  patience, // or a late answer on a busy machine is a second delivery
	})
	const keys, perKey = 20, 50
	check := newOrderCheck(t, keys)
	var n atomic.Int64
	f := func(msg *message.Message) {
		if n.Add(1)%7 == 0 {
			msg.Nack()
			return
		}
		check.handled(msg)
		msg.Ack()
	}
	stop := make(chan struct{})
	var restarts sync.WaitGroup
	for range 3 {
		restarts.Go(func() {
			for {
				consumeBriefly(t, b.Subscriber("stock"), "orders", f)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	if err := b.Subscriber("stock").SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	if err := b.Publish("orders", check.messages(perKey)...); err != nil {
		t.Error(err)
	}
	close(stop)
	restarts.Wait()
	check.complete(perKey)
}

// consumeBriefly consumes for two milliseconds, and until f has returned.
func consumeBriefly(t *testing.T, s *memory.Subscriber, topic string, f func(*message.Message)) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	messages, err := s.Subscribe(ctx, topic)
	if err != nil {
		t.Error(err)
		return
	}
	time.AfterFunc(2*time.Millisecond, cancel)
	var handlers sync.WaitGroup
	defer handlers.Wait()
	for msg := range messages {
		handlers.Go(func() { f(msg) })
	}
}

// orderCheck sees that messages of a key are handled one at a time and in order.
type orderCheck struct {
	t       testing.TB
	keys    int
	running []atomic.Bool
	next    []int // guarded by running, which also tells of a second handler at once
}

func newOrderCheck(t testing.TB, keys int) *orderCheck {
	return &orderCheck{t: t, keys: keys, running: make([]atomic.Bool, keys), next: make([]int, keys)}
}

// messages returns perKey messages of every key, the keys interleaved.
func (c *orderCheck) messages(perKey int) []*message.Message {
	msgs := make([]*message.Message, 0, c.keys*perKey)
	for seq := range perKey {
		for key := range c.keys {
			msg := message.NewMessage(strconv.Itoa(key)+"/"+strconv.Itoa(seq), nil)
			msg.Metadata.Set(transport.MetaKey, strconv.Itoa(key))
			msg.Metadata.Set("seq", strconv.Itoa(seq))
			msgs = append(msgs, msg)
		}
	}
	return msgs
}

func (c *orderCheck) handled(msg *message.Message) {
	key, _ := strconv.Atoi(msg.Metadata.Get(transport.MetaKey))
	seq, _ := strconv.Atoi(msg.Metadata.Get("seq"))
	if !c.running[key].CompareAndSwap(false, true) {
		c.t.Errorf("two messages of key %d are handled at once", key)
		return
	}
	defer c.running[key].Store(false)
	if c.next[key] != seq {
		c.t.Errorf("key %d: got %d, want %d", key, seq, c.next[key])
	}
	c.next[key] = seq + 1
}

func (c *orderCheck) complete(perKey int) {
	c.t.Helper()
	for key, next := range c.next {
		if next != perKey {
			c.t.Errorf("key %d ended at %d of %d", key, next, perKey)
		}
	}
}

func TestHundredThousandMessagesPassInOrder(t *testing.T) {
	t.Parallel()
	const keys, perKey, readers = 1000, 100, 4
	b := newBroker(t, memory.Config{})
	check := newOrderCheck(t, keys)
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	for range readers {
		go func() {
			for msg := range messages {
				check.handled(msg)
				msg.Ack()
			}
		}()
	}
	begin := time.Now()
	if err := b.Publish("orders", check.messages(perKey)...); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	check.complete(perKey)
	t.Logf("%d messages in %v, %.0f/s", keys*perKey, took, keys*perKey/took.Seconds())
}
