package amqp_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// TestOnANodeOfItsOwn has what concerns a whole broker, one after another.
func TestOnANodeOfItsOwn(t *testing.T) {
	t.Parallel()
	node := testenv.PrivateRabbitMQ(t)
	early := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(node.URL())})
	mustConfirm(t, early, "crash", newMessage("early"))
	_ = early.Close()
	t.Run("memory alarm ends in a clear state", func(t *testing.T) { memoryAlarm(t, node) })
	t.Run("passive needs no permission to configure", func(t *testing.T) { passive(t, node) })
	t.Run("queue that answers nothing stops no other", func(t *testing.T) { stuckQueue(t, node) })
	t.Run("queue that answers nothing fills no memory", func(t *testing.T) { confirmsBehindAStuckQueue(t, node) })
	t.Run("culprit is found beside a queue that answers nothing", func(t *testing.T) { culpritBesideAStuckQueue(t, node) })
	t.Run("repartition of a queue that answers late loses nothing", func(t *testing.T) { lateQueue(t, node) })
	t.Run("queue that answers nothing stops no other subscription", func(t *testing.T) { silentQueue(t, node) })
	t.Run("crash of the broker loses nothing confirmed", func(t *testing.T) { crash(t, node) })
}

func memoryAlarm(t *testing.T, node *testenv.Node) {
	url := node.URL()
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url), ConfirmTimeout: time.Second})
	closing := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url), ConfirmTimeout: time.Second})
	awaitConfirm(t, p, "alarm", "before")
	awaitConfirm(t, closing, "alarm", "before")

	node.Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	// The broker blocks a connection when something is published on it.
	var r transport.Result
	await(t, "blocked", func() bool {
		r = sendWithin(t, p, 200*time.Millisecond, "alarm", newMessage("during"))
		return p.Health().Blocked
	})
	for range 20 {
		begin := time.Now()
		r = sendWithin(t, p, 100*time.Millisecond, "alarm", newMessage("during"))
		wantOutcome(t, r, transport.Unavailable, amqp.ErrBlocked)
		if d := time.Since(begin); d > publishCall {
			t.Errorf("a deadline of 100 ms took %v", d)
		}
	}
	if h := p.Health(); !h.Connected || h.Err == nil {
		t.Errorf("health = %+v", h)
	}
	// ConfirmTimeout passes as well, and what was sent is not sent again and again.
	if err := p.Publish("alarm", newMessage("during")); err == nil {
		t.Error("published during the alarm")
	}
	// A publisher that does not know yet that it is blocked closes in time, too.
	_ = sendWithin(t, closing, 50*time.Millisecond, "alarm", newMessage("during"))
	begin := time.Now()
	if err := closing.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("Close took %v", d)
	}

	node.Ctl(t, "set_vm_memory_high_watermark", "0.6")
	await(t, "unblocked", func() bool {
		return sendWithin(t, p, time.Second, "alarm", newMessage("after")).Outcome == transport.Confirmed
	})
	if h := p.Health(); h.Blocked || h.Err != nil {
		t.Errorf("health = %+v", h)
	}
}

func passive(t *testing.T, node *testenv.Node) {
	const exchange, consumer = "passive", "consumer"
	node.Ctl(t, "add_user", "app", "app-password")
	node.Ctl(t, "set_permissions", "app", "", ".*", ".*") // configure, write, read
	url := strings.Replace(node.URL(), "guest:guest@", "app:app-password@", 1)
	sc := amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(url, consumer), DeliveryLimitIsSafe: true}

	declaring := newSubscriber(t, sc)
	if _, err := declaring.Subscribe(t.Context(), exchange); err == nil || !strings.Contains(err.Error(), "Passive") {
		t.Errorf("Subscribe without the permission to declare = %v", err)
	}
	sc.Topology = amqp.Passive
	checking := newSubscriber(t, sc)
	if _, err := checking.Subscribe(t.Context(), exchange); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("Subscribe to what is not there = %v", err)
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurablePubSub(url, ""), Topology: amqp.Passive})
	wantOutcome(t, send(t, p, exchange, newMessage("x")), transport.Returned, amqp.ErrUnroutable)

	operator := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(node.URL(), consumer)})
	if err := operator.SubscribeInitialize(exchange); err != nil {
		t.Fatal(err)
	}
	mustConfirm(t, p, exchange, newMessage("x"))
	receive(t, subscribe(t, checking, exchange)).Ack()
}

// crash kills the broker while messages are published to a quorum queue, and
// starts it again.
func crash(t *testing.T, node *testenv.Node) {
	config := amqp.DurableQueue(node.URL())
	quickly(&config)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, ConfirmTimeout: 5 * time.Second})
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config})
	awaitConfirm(t, p, "crash", "warm")
	messages := subscribe(t, s, "crash")

	stop := make(chan struct{})
	probe := func() bool {
		results := make(chan transport.Result, 1)
		p.Send(t.Context(), "crash", newMessage("probe"), func(r transport.Result) { results <- r })
		return (<-results).Outcome == transport.Confirmed || t.Context().Err() != nil
	}
	var steps sync.WaitGroup
	t.Cleanup(steps.Wait)
	steps.Go(func() {
		defer close(stop)
		for begin := time.Now(); time.Since(begin) < 3*time.Second; {
			probe()
		}
		if err := node.Settle(t.Context()); err != nil { // a queue is not on disk when its declaration is answered
			t.Error(err)
		}
		node.Crash()
		if err := node.Start(t.Context()); err != nil {
			t.Error(err)
		}
		for retry := time.NewTicker(10 * time.Millisecond); !probe(); {
			<-retry.C
		}
	})
	confirmed := make(chan map[string]bool, 1)
	steps.Go(func() { confirmed <- publishUntilStopped(t, p, "crash", stop) })

	seen := make(map[string]bool)
	var want map[string]bool // confirmed, and not seen yet
	total := 0
	const longest = 4 * publishCall // on a busy machine a node takes its time to start
	quiet := time.NewTimer(longest)
	for want == nil || len(want) > 0 {
		select {
		case msg := <-messages:
			id := string(msg.Payload)
			msg.Ack()
			seen[id] = true
			delete(want, id)
			quiet.Reset(longest)
		case want = <-confirmed:
			total = len(want)
			for id := range seen {
				delete(want, id)
			}
		case <-quiet.C:
			t.Fatalf("%d of %d confirmed messages never came", len(want), total)
		}
	}
	t.Logf("%d messages confirmed, %d received", total, len(seen))
}

// stuckQueue has one of two queues confirm nothing, as one without a leader does.
func stuckQueue(t *testing.T, node *testenv.Node) {
	config := amqp.DurableQueue(node.URL())
	w := wired(&config)
	const timeout = 6 * time.Second
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, ConfirmTimeout: timeout, Window: 10})
	mustConfirm(t, p, "stuck", newMessage("before"))
	mustConfirm(t, p, "well", newMessage("before"))
	control := func(what string) { control(t, node, "stuck", what) }
	control("suspend")
	unanswered := make(chan transport.Result, 1)
	p.Send(t.Context(), "stuck", newMessage("unanswered"), func(r transport.Result) { unanswered <- r })
	var r transport.Result
	for waiting := true; waiting; {
		begin := time.Now()
		mustConfirm(t, p, "well", newMessage("meanwhile"))
		if d := time.Since(begin); d > timeout-time.Second {
			t.Errorf("confirmed after %v", d)
		}
		select {
		case r = <-unanswered:
			waiting = false
		case <-time.After(20 * time.Millisecond):
		}
	}
	wantOutcome(t, r, transport.Unavailable, amqp.ErrConfirmTimeout)
	mustConfirm(t, p, "well", newMessage("still"))
	if n := w.dialled(); n != 1 {
		t.Errorf("%d connections", n)
	}
	// When they take up more than half of the window, a new connection frees it.
	for range 7 {
		_ = sendWithin(t, p, 10*time.Millisecond, "stuck", newMessage("unanswered"))
	}
	await(t, "another connection", func() bool {
		r := send(t, p, "well", newMessage("after"))
		return r.Outcome == transport.Confirmed && w.dialled() > 1
	})
	control("resume")
	awaitConfirm(t, p, "stuck", "after")
}

// confirmsBehindAStuckQueue has many messages confirmed behind one that is not: the client would
// keep what it knows of each.
func confirmsBehindAStuckQueue(t *testing.T, node *testenv.Node) {
	config := amqp.DurableQueue(node.URL())
	w := wired(&config)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, ConfirmTimeout: 6 * time.Second})
	p.SetConfirmsAhead(100)
	mustConfirm(t, p, "mute", newMessage("before"))
	mustConfirm(t, p, "busy", newMessage("before"))
	control(t, node, "mute", "suspend")
	defer control(t, node, "mute", "resume")
	unanswered := make(chan transport.Result, 1)
	p.Send(t.Context(), "mute", newMessage("unanswered"), func(r transport.Result) { unanswered <- r })
	for range 90 {
		mustConfirm(t, p, "busy", newMessage("few"))
	}
	wantOutcome(t, <-unanswered, transport.Unavailable, amqp.ErrConfirmTimeout)
	mustConfirm(t, p, "busy", newMessage("no more yet"))
	if n := w.dialled(); n != 1 {
		t.Fatalf("%d connections after few confirms", n)
	}
	await(t, "another connection", func() bool {
		_ = send(t, p, "busy", newMessage("many"))
		return w.dialled() > 1
	})
	awaitConfirm(t, p, "busy", "after")
}

// culpritBesideAStuckQueue has the broker close the channel for one message while another is
// unanswered.
func culpritBesideAStuckQueue(t *testing.T, node *testenv.Node) {
	config := amqp.DurableQueue(node.URL())
	config.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(pub amqp091.Publishing) amqp091.Publishing {
		if string(pub.Body) == "bad" {
			pub.UserId = "nobody"
		}
		return pub
	}}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Topology: amqp.NoTopology})
	for _, name := range []string{"silent", "loud"} {
		if err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config}).SubscribeInitialize(name); err != nil {
			t.Fatal(err)
		}
		mustConfirm(t, p, name, newMessage("before"))
	}
	control(t, node, "silent", "suspend")
	defer control(t, node, "silent", "resume")
	unanswered := make(chan transport.Result, 1)
	p.Send(t.Context(), "silent", newMessage("unanswered"), func(r transport.Result) { unanswered <- r })
	mustConfirm(t, p, "loud", newMessage("meanwhile"))
	var c tally
	c.send(t.Context(), p, "loud", newMessage("good"))
	c.send(t.Context(), p, "loud", newMessage("bad"))
	c.pending.Wait()
	if c.of(transport.Confirmed) != 1 || c.of(transport.Invalid) != 1 {
		t.Errorf("outcomes: %v", &c)
	}
	wantOutcome(t, <-unanswered, transport.Unavailable, nil)
}

// control has the process of a queue do something: suspended, it answers nothing until it is
// resumed.
func control(t *testing.T, node *testenv.Node, queue, what string) {
	t.Helper()
	node.Ctl(t, "eval", fmt.Sprintf(
		`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), sys:%s(amqqueue:get_pid(Q)).`, queue, what))
}

// lateQueue has the leader of an old queue answer nothing when its messages are counted: the broker
// says then that there are none.
func lateQueue(t *testing.T, node *testenv.Node) {
	const messages = 20
	config := amqp.DurablePubSub(node.URL(), "consumer")
	for from, late := range map[int]string{1: "late1_consumer.1of1", 0: "late0_consumer"} {
		name := fmt.Sprint("late", from)
		old := amqp.SubscriberConfig{AMQP: config, Partitions: from}
		next := old
		next.Partitions = 2
		if err := newSubscriber(t, old).SubscribeInitialize(name); err != nil {
			t.Fatal(err)
		}
		p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: from})
		publishNumbered(t, p, name, 1, 1, messages)
		control(t, node, late, "suspend")
		result := make(chan error, 1)
		go func() { result <- amqp.Repartition(t.Context(), next, name, from) }()
		control(t, node, late, "resume") // rabbitmqctl starts longer than the broker waits for the leader
		if err := <-result; !errors.Is(err, amqp.ErrNotDrained) || !strings.Contains(err.Error(), late) {
			t.Errorf("from %d: %v, want %v of %s", from, err, amqp.ErrNotDrained, late)
		}
		var h history
		s := newSubscriber(t, old)
		deliveries := subscribe(t, s, name)
		for range messages {
			h.handle(receive(t, deliveries))
		}
		h.wantOrder(t, 1, messages)
		none(t, deliveries)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		repartition(t, next, name, from)
	}
}
