package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// tally counts outcomes.
type tally struct {
	counts  [transport.Invalid + 1]atomic.Int64
	pending sync.WaitGroup
}

// send sends and counts the outcome.
func (c *tally) send(ctx context.Context, p transport.Sender, topic string, msg *message.Message) {
	c.pending.Add(1)
	p.Send(ctx, topic, msg, func(r transport.Result) {
		c.counts[r.Outcome].Add(1)
		c.pending.Done()
	})
}

func (c *tally) of(o transport.Outcome) int { return int(c.counts[o].Load()) }

func (c *tally) String() string {
	var b strings.Builder
	for o := range c.counts {
		fmt.Fprintf(&b, "%v: %d ", transport.Outcome(o), c.counts[o].Load())
	}
	return b.String()
}

// TestUnroutableIsNeverConfirmed: stock watermill-amqp reports all of these as
// published. Reading returns in a goroutine of their own reports thousands.
func TestUnroutableIsNeverConfirmed(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: exchangeOnly(url)})
	const messages = 20_000
	var c tally
	for i := range messages {
		c.send(t.Context(), p, name, newMessage(fmt.Sprint(i)))
	}
	c.pending.Wait()
	if c.of(transport.Returned) != messages {
		t.Fatalf("of %d unroutable messages: %v", messages, &c)
	}
	err := p.Publish(name, newMessage("x"))
	if !errors.Is(err, amqp.ErrUnroutable) {
		t.Errorf("Publish = %v", err)
	}
}

// TestReturnBelongsToItsPublish sends messages of one UUID to a topic with a queue
// and to one without, so that a return matched by the message's ID would be booked
// on the wrong one.
func TestReturnBelongsToItsPublish(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	good, bad := name+"-good", name+"-bad"
	p := newPublisher(t, amqp.PublisherConfig{
		AMQP:   exchangeOnly(url),
		Queues: []amqp.Queue{{Topic: good, Name: name + "-queue"}},
	})
	var delivered, lost tally
	id := uuid.NewString()
	for range 2000 {
		delivered.send(t.Context(), p, good, message.NewMessage(id, nil))
		lost.send(t.Context(), p, bad, message.NewMessage(id, nil))
	}
	delivered.pending.Wait()
	lost.pending.Wait()
	if delivered.of(transport.Confirmed) != 2000 || lost.of(transport.Returned) != 2000 {
		t.Errorf("routable: %v; unroutable: %v", &delivered, &lost)
	}
}

// TestManyMessagesAwaitTheirConfirmsAtOnce: stock watermill-amqp publishes the
// second message after the confirm of the first, even of one call.
func TestManyMessagesAwaitTheirConfirmsAtOnce(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	config := amqp.DurableQueue(url)
	w := wired(&config)
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Window: 100})
	mustConfirm(t, p, name, newMessage("first"))

	w.hold()
	messages := make([]*message.Message, 100)
	for i := range messages {
		messages[i] = newMessage(fmt.Sprint(i))
	}
	published := make(chan error, 1)
	go func() { published <- p.Publish(name, messages...) }()
	await(t, "100 messages in the queue, none confirmed", func() bool { return depth(t, url, name) == 101 })
	if n := p.Health().Unconfirmed; n != 100 {
		t.Errorf("%d messages unconfirmed", n)
	}
	w.pass()
	if err := <-published; err != nil {
		t.Error(err)
	}
}

// TestQueueIsThereBeforeItsConsumer: with stock watermill-amqp a queue comes to be
// when a consumer first starts, and what was published before is gone.
func TestQueueIsThereBeforeItsConsumer(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{
		AMQP:   amqp.DurablePubSub(url, ""),
		Queues: []amqp.Queue{{Topic: name, Name: name + "_inventory"}, {Topic: name, Name: name + "_billing"}},
	})
	mustConfirm(t, p, name, newMessage("early"))
	for _, consumer := range []string{"inventory", "billing"} {
		s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(url, consumer)})
		take(t, subscribe(t, s, name), "early")
	}
}

func TestFullQueueRefuses(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	config.Queue.Arguments = amqp091.Table{"x-max-length": 1, "x-overflow": "reject-publish"}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, QueueType: amqp.Classic})
	mustConfirm(t, p, name, newMessage("takes the place"))
	wantOutcome(t, send(t, p, name, newMessage("has none")), transport.Refused, amqp.ErrNacked)
	wantOutcome(t, send(t, p, name+"-other", newMessage("other queue")), transport.Confirmed, nil)
}

func TestPublishTellsWhichMessagesFailed(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url), MaxBody: 10})
	large := newMessage(strings.Repeat("x", 11))
	err := p.Publish(name, newMessage("0"), large, newMessage("2"))
	var failed *amqp.PublishError
	if !errors.As(err, &failed) {
		t.Fatalf("error = %v", err)
	}
	if len(failed.Failed) != 1 || failed.Failed[0].Index != 1 || failed.Failed[0].UUID != large.UUID ||
		failed.Failed[0].Result.Outcome != transport.Invalid {
		t.Errorf("failed = %+v", failed.Failed)
	}
	await(t, "the others in the queue", func() bool { return depth(t, url, name) == 2 })
	if err := p.Publish(name); err != nil {
		t.Errorf("Publish of nothing = %v", err)
	}
}

// TestWhatTheProtocolCannotCarryIsInvalid: each of these would close the channel
// or the connection, and fail everything that is on its way.
func TestWhatTheProtocolCannotCarryIsInvalid(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	w := wired(&config)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, MaxBody: 1 << 10})
	long := strings.Repeat("x", 256)
	with := func(meta, value string) *message.Message {
		m := newMessage("")
		m.Metadata[meta] = value
		return m
	}
	many := newMessage("")
	for i := range 5000 {
		many.Metadata[fmt.Sprint(i)] = ""
	}
	for _, test := range []struct {
		field, topic string
		msg          *message.Message
	}{
		{"routing key", long, newMessage("")},
		{"message ID", name, message.NewMessage(long, nil)},
		{"type", name, with(transport.MetaType, long)},
		{"content type", name, with(transport.MetaContentType, long)},
		{"header", name, with(long, "x")},
		{"headers", name, with("big", strings.Repeat("x", 130<<10))},
		{"headers", name, many},
		{"payload", name, newMessage(strings.Repeat("x", 2<<10))},
	} {
		r := send(t, p, test.topic, test.msg)
		wantOutcome(t, r, transport.Invalid, nil)
		if !strings.Contains(r.Err.Error(), test.field) {
			t.Errorf("%s: error = %v", test.field, r.Err)
		}
		if len(r.Err.Error()) > 1000 {
			t.Errorf("%s: error of %d bytes", test.field, len(r.Err.Error()))
		}
	}
	largest := newMessage(strings.Repeat("x", 1<<10))
	largest.Metadata["big"] = strings.Repeat("x", 119<<10)
	mustConfirm(t, p, name, largest)
	if n := w.dialled(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestExceptionOfALoneMessageIsItsOwn has the broker close the channel for the
// properties of a message.
func TestExceptionOfALoneMessageIsItsOwn(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	config.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(pub amqp091.Publishing) amqp091.Publishing {
		if string(pub.Body) == "bad" {
			pub.UserId = "nobody"
		}
		return pub
	}}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	mustConfirm(t, p, name, newMessage("good"))
	wantOutcome(t, send(t, p, name, newMessage("bad")), transport.Invalid, nil)
	mustConfirm(t, p, name, newMessage("good again"))
}

// TestExceptionLeavesWhatWasGatheredToTheNextChannel, behind what was published: the broker has not
// seen it.
func TestExceptionLeavesWhatWasGatheredToTheNextChannel(t *testing.T) {
	t.Parallel()
	k := newCulprits(t, 2)
	const rounds, alone = 5, 4
	var want []string
	for round := range rounds {
		mustConfirm(t, k.p, k.good, keyed("key", fmt.Sprint(round, ".first")))
		k.w.hold()
		var c tally
		for i := range alone {
			c.send(t.Context(), k.p, k.good, keyed("key", fmt.Sprint(round, ".", i)))
		}
		for range 2 { // a full batch, which is published at once
			c.send(t.Context(), k.p, k.missing, newMessage("culprit"))
		}
		c.send(t.Context(), k.p, k.good, keyed("key", fmt.Sprint(round, ".gathered")))
		k.w.pass()
		c.pending.Wait()
		if c.of(transport.Confirmed) != alone+1 || c.of(transport.Returned) != 2 {
			t.Fatalf("outcomes of round %d: %v", round, &c)
		}
		want = append(want, fmt.Sprint(round, ".first"), fmt.Sprint(round, ".0"), fmt.Sprint(round, ".1"), fmt.Sprint(round, ".2"),
			fmt.Sprint(round, ".3"), fmt.Sprint(round, ".gathered"))
	}
	k.wantReceived(want)
}

// TestExceptionIsThatOfItsMessage: the broker closes the channel for one of many that are
// unanswered. That one is found, the others are confirmed, and keep their order.
func TestExceptionIsThatOfItsMessage(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"alone": 1, "in batches": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newCulprits(t, batch)
			mustConfirm(t, k.p, k.good, keyed("key", "0"))

			k.w.hold()
			var c tally
			for i := range 20 {
				c.send(t.Context(), k.p, k.good, keyed("key", strconv.Itoa(i+1)))
				if i%8 == 5 {
					c.send(t.Context(), k.p, k.missing, newMessage("culprit"))
				}
			}
			k.w.pass()
			c.pending.Wait()
			if c.of(transport.Confirmed) != 20 || c.of(transport.Returned) != 2 {
				t.Fatalf("outcomes: %v", &c)
			}
			k.wantReceived(strings.Fields("0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"))
		})
	}
}

// TestUnroutableMessageIsReturnedThoughItsChannelHasEnded: it is published once more behind the
// message for which the broker ends the channel.
func TestUnroutableMessageIsReturnedThoughItsChannelHasEnded(t *testing.T) {
	t.Parallel()
	k := newCulprits(t, 1)
	unbound := k.good + "-unbound"
	declares := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurablePubSub(k.url, "")})
	wantOutcome(t, send(t, declares, unbound, newMessage("declares")), transport.Returned, amqp.ErrUnroutable)
	mustConfirm(t, k.p, k.good, keyed("key", "0"))

	k.w.hold()
	var c tally
	c.send(t.Context(), k.p, k.missing, newMessage("culprit"))
	c.send(t.Context(), k.p, unbound, newMessage("unroutable"))
	c.send(t.Context(), k.p, k.good, keyed("key", "1"))
	k.w.pass()
	c.pending.Wait()
	if c.of(transport.Confirmed) != 1 || c.of(transport.Returned) != 2 {
		t.Fatalf("outcomes: %v", &c)
	}
	k.wantReceived(strings.Fields("0 1"))
}

// TestMessageThatTheBrokerCannotTakeIsFoundAmongMany also when others end, and when the connection
// does.
func TestMessageThatTheBrokerCannotTakeIsFoundAmongMany(t *testing.T) {
	t.Parallel()
	name := topic(t)
	config := amqp.DurableQueue(testenv.AMQPURL(t))
	quickly(&config)
	w := wired(&config)
	config.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(pub amqp091.Publishing) amqp091.Publishing {
		if string(pub.Body) == "bad" {
			pub.UserId = "nobody"
		}
		return pub
	}}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	mustConfirm(t, p, name, newMessage("good"))
	w.hold()
	var c tally
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 30 {
		body := "good"
		if i%10 == 4 {
			body = "bad"
		}
		c.send(ctx, p, name, newMessage(body))
	}
	w.pass()
	c.pending.Wait()
	if c.of(transport.Confirmed) != 27 || c.of(transport.Invalid) != 3 {
		t.Errorf("outcomes: %v", &c)
	}
	mustConfirm(t, p, name, newMessage("good"))
	w.hold()
	for range 30 {
		c.send(ctx, p, name, newMessage("bad"))
	}
	cancel()
	w.cut()
	w.pass()
	c.pending.Wait()
	awaitConfirm(t, p, name, "after")
	if n := p.Health().Unconfirmed; n != 0 {
		t.Errorf("%d unconfirmed", n)
	}
}

// newSubscriberQueue declares the topology of a consumer of topic.
func newSubscriberQueue(t *testing.T, url, topic string) {
	t.Helper()
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(url, "consumer")})
	if err := s.SubscribeInitialize(topic); err != nil {
		t.Fatal(err)
	}
}

// TestDeletedExchangeIsDeclaredAgain: stock watermill-amqp remembers for ever that
// it has declared it.
func TestDeletedExchangeIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{
		AMQP:   amqp.DurablePubSub(url, ""),
		Queues: []amqp.Queue{{Topic: name, Name: name + "_consumer"}},
	})
	mustConfirm(t, p, name, newMessage("before"))
	if err := channel(t, url).ExchangeDelete(name, false, false); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, send(t, p, name, newMessage("finds out")), transport.Unavailable, nil)
	mustConfirm(t, p, name, newMessage("after"))
	await(t, "both in the queue", func() bool { return depth(t, url, name+"_consumer") == 2 })
}

// TestDeletedQueueIsDeclaredAgain once its absence shows in a return.
func TestDeletedQueueIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url)})
	mustConfirm(t, p, name, newMessage("before"))
	if _, err := channel(t, url).QueueDelete(name, false, false, false); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, send(t, p, name, newMessage("finds out")), transport.Returned, amqp.ErrUnroutable)
	awaitConfirm(t, p, name, "after")
}

func TestConfirmThatMissesItsDeadlineClosesTheConnection(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	w := wired(&config)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, ConfirmTimeout: 500 * time.Millisecond})
	awaitConfirm(t, p, name, "warm")
	w.hold()
	var c tally
	for range 100 {
		c.send(t.Context(), p, name, newMessage("unanswered"))
	}
	c.pending.Wait()
	if c.of(transport.Unavailable) != 100 {
		t.Errorf("outcomes: %v", &c)
	}
	w.pass()
	awaitConfirm(t, p, name, "after")
	if w.dialled() < 2 {
		t.Error("the connection is still the first")
	}
}

func TestEndOfAContextEndsOneWait(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	w := wired(&config)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Window: 2})
	mustConfirm(t, p, name, newMessage("warm"))
	w.hold()
	others := make(chan transport.Result, 1)
	p.Send(t.Context(), name, newMessage("patient"), func(r transport.Result) { others <- r })
	r := sendWithin(t, p, 50*time.Millisecond, name, newMessage("impatient"))
	wantOutcome(t, r, transport.Unavailable, context.DeadlineExceeded)

	// Both places of the window are taken by what the broker has not answered.
	r = sendWithin(t, p, 50*time.Millisecond, name, newMessage("no room"))
	wantOutcome(t, r, transport.Unavailable, context.DeadlineExceeded)
	w.pass()
	wantOutcome(t, <-others, transport.Confirmed, nil)
	mustConfirm(t, p, name, newMessage("after"))
	if n := w.dialled(); n != 1 {
		t.Errorf("%d connections", n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	results := make(chan transport.Result, 1)
	p.Send(ended, name, newMessage("late"), func(r transport.Result) { results <- r })
	wantOutcome(t, <-results, transport.Unavailable, context.Canceled)
}

func TestLargeMessagesWaitForEachOther(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url), WindowBytes: 100})
	var c tally
	for range 20 {
		c.send(t.Context(), p, name, newMessage(strings.Repeat("x", 60)))
		c.send(t.Context(), p, name, newMessage(strings.Repeat("x", 300)))
	}
	c.pending.Wait()
	if c.of(transport.Confirmed) != 40 {
		t.Errorf("outcomes: %v", &c)
	}
}

func TestRouteIsPublisherExchangeAndRoutingKey(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.TopicExchange("amqp://u:secret@broker/v", "events", "")})
	if got := p.Route("order.placed"); got != "broker:5672/v events/order.placed" {
		t.Errorf("Route = %q", got)
	}
	q := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurablePubSub("amqp://broker", ""), Name: "east"})
	if got := q.Route("order.placed"); got != "east order.placed/" {
		t.Errorf("Route = %q", got)
	}
}
