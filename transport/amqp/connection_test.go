package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// quickly reconnects without much waiting.
func quickly(c *wamqp.Config) {
	c.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 10 * time.Millisecond, BackoffMaxInterval: 100 * time.Millisecond,
	}
}

// publishUntilStopped publishes numbered messages from several goroutines, each
// once, while something happens to the connection, and returns those that were
// confirmed. What is unavailable is not sent again.
func publishUntilStopped(t *testing.T, p *amqp.Publisher, topic string, stop <-chan struct{}) map[string]bool {
	t.Helper()
	var mu sync.Mutex
	confirmed := make(map[string]bool)
	var senders sync.WaitGroup
	for sender := range 50 {
		senders.Go(func() {
			results := make(chan transport.Result, 1)
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d/%d", sender, i)
				p.Send(t.Context(), topic, newMessage(id), func(r transport.Result) { results <- r })
				switch r := <-results; r.Outcome {
				case transport.Confirmed:
					mu.Lock()
					confirmed[id] = true
					mu.Unlock()
				case transport.Unavailable:
				default:
					t.Errorf("outcome = %v, %v", r.Outcome, r.Err)
				}
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	senders.Wait()
	return confirmed
}

// missing returns those of ids that are not in the queue.
func missing(t *testing.T, url, queue string, ids map[string]bool) []string {
	t.Helper()
	ch := channel(t, url)
	if err := ch.Qos(1000, 0, false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	left := make(map[string]bool, len(ids))
	for id := range ids {
		left[id] = true
	}
	for len(left) > 0 {
		select {
		case d := <-deliveries:
			delete(left, string(d.Body))
		case <-time.After(publishCall):
			var lost []string
			for id := range left {
				lost = append(lost, id)
			}
			return lost
		}
	}
	return nil
}

// TestConnectionClosedByTheBrokerLosesNothingConfirmed has the broker close the
// connection while messages are on their way.
func TestConnectionClosedByTheBrokerLosesNothingConfirmed(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	quickly(&config)
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	config.Connection.AmqpConfig = &amqp091.Config{Properties: properties}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	mustConfirm(t, p, name, newMessage("warm"))

	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for range 3 {
			for line := range strings.Lines(testenv.Ctl(t, "-q", "list_connections", "pid", "client_properties")) {
				if pid, rest, _ := strings.Cut(line, "\t"); strings.Contains(rest, `"`+name+`"`) {
					testenv.Ctl(t, "-q", "close_connection", pid, "test")
				}
			}
		}
	}()
	confirmed := publishUntilStopped(t, p, name, stop)
	mustConfirm(t, p, name, newMessage("after"))
	if lost := missing(t, url, name, confirmed); lost != nil {
		t.Errorf("of %d confirmed messages %d are lost", len(confirmed), len(lost))
	}
	t.Logf("%d messages confirmed", len(confirmed))
}

// TestCutConnectionsLoseNothingConfirmed: stock watermill-amqp has a data race
// here, which the race detector would report.
func TestCutConnectionsLoseNothingConfirmed(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	quickly(&config)
	w := wired(&config)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for range 10 {
			before := w.dialled()
			awaitConfirm(t, p, name, "probe")
			unanswered := w.losses()
			w.lose()
			await(t, "a message that is lost", func() bool { return w.losses() > unanswered })
			w.cut()
			await(t, "another connection", func() bool { return w.dialled() > before })
		}
	}()
	confirmed := publishUntilStopped(t, p, name, stop)
	if lost := missing(t, url, name, confirmed); lost != nil {
		t.Errorf("of %d confirmed messages %d are lost", len(confirmed), len(lost))
	}
	t.Logf("%d messages confirmed over %d connections", len(confirmed), w.dialled())
}

func TestCloseWaitsForConfirms(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url)})
	var c tally
	for i := range 500 {
		c.send(t.Context(), p, name, newMessage(fmt.Sprint(i)))
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	c.pending.Wait()
	if c.of(transport.Confirmed) != 500 {
		t.Errorf("outcomes: %v", &c)
	}
	wantOutcome(t, send(t, p, name, newMessage("late")), transport.Unavailable, amqp.ErrClosed)
	if err := p.Connect(t.Context()); err == nil {
		t.Error("a closed publisher connects")
	}
	if err := p.Close(); err != nil {
		t.Errorf("second Close = %v", err)
	}
}

// TestCloseEndsAnAttemptToConnect to a host that accepts and says nothing.
func TestCloseEndsAnAttemptToConnect(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue("amqp://" + silent.Addr().String())})
	results := make(chan transport.Result, 1)
	go p.Send(t.Context(), "topic", newMessage("x"), func(r transport.Result) { results <- r })
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begin := time.Now()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	wantOutcome(t, <-results, transport.Unavailable, amqp.ErrClosed)
	if d := time.Since(begin); d > 20*time.Second { // an attempt takes 30 s
		t.Errorf("Close took %v", d)
	}
}

// TestCloseWhileReconnecting leaves nothing behind: goleak watches the package.
func TestCloseWhileReconnecting(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	config.Connection.Reconnect = &wamqp.ReconnectConfig{BackoffInitialInterval: time.Millisecond, BackoffMaxInterval: time.Hour, BackoffMultiplier: 1000}
	w := wired(&config)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config})
	mustConfirm(t, p, name, newMessage("x"))
	messages := subscribe(t, s, name)
	msg := receive(t, messages)
	before := w.dialled()
	w.fall()
	await(t, "attempts to connect again", func() bool { return w.dialled() >= before+4 })
	wantOutcome(t, send(t, p, name, newMessage("x")), transport.Unavailable, nil)
	msg.Ack() // the handler finishes, for nothing
	begin := time.Now()
	if err := errors.Join(p.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, open := <-messages; open {
		t.Error("a message after Close")
	}
	if d := time.Since(begin); d > publishCall {
		t.Errorf("Close took %v", d)
	}
}

// TestCloseDoesNotWaitForABrokerThatHangs for longer than its timeouts.
func TestCloseDoesNotWaitForABrokerThatHangs(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	w := wired(&config)
	config.Connection.AmqpConfig.Heartbeat = time.Minute // it ends a connection after three of them
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, ConfirmTimeout: 500 * time.Millisecond})
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, CloseTimeout: 500 * time.Millisecond})
	s.SetTimeout(3 * time.Minute)
	awaitConfirm(t, p, name, "x")
	receive(t, subscribe(t, s, name))
	w.hold()
	results := make(chan transport.Result, 1)
	p.Send(t.Context(), name, newMessage("x"), func(r transport.Result) { results <- r })
	subscribing := make(chan error, 1)
	go func() {
		_, err := s.Subscribe(t.Context(), name+"-other")
		subscribing <- err
	}()
	begin := time.Now()
	if err := errors.Join(p.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	wantOutcome(t, <-results, transport.Unavailable, nil)
	if err := <-subscribing; err == nil {
		t.Error("Subscribe gives no error")
	}
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("Close took %v", d)
	}
}

func TestNothingListeningIsUnavailableAtOnce(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	_ = listener.Close()
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue("amqp://" + addr)})
	for range 3 {
		r := send(t, p, "topic", newMessage("x"))
		wantOutcome(t, r, transport.Unavailable, nil)
		if !strings.Contains(r.Err.Error(), addr) {
			t.Errorf("error = %v", r.Err)
		}
	}
	if h := p.Health(); h.Connected || h.Err == nil {
		t.Errorf("health = %+v", h)
	}
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue("amqp://" + addr)})
	if _, err := s.Subscribe(t.Context(), "topic"); err == nil {
		t.Error("Subscribe gives no error")
	}
}

func TestUnusedPublisherAndSubscriberClose(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue("amqp://nowhere.invalid")})
	if h := p.Health(); h.Connected || h.Err != nil {
		t.Errorf("health = %+v", h)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue("amqp://nowhere.invalid")})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestFailedLoginDoesNotShowThePassword(t *testing.T) {
	t.Parallel()
	url := strings.Replace(testenv.AMQPURL(t), "guest:guest@", "guest:Tr0ub4dor%263@", 1)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url)})
	err := p.Publish("topic", newMessage("x"))
	if err == nil || !strings.Contains(err.Error(), "403") && !strings.Contains(err.Error(), "password") {
		t.Errorf("error = %v", err)
	}
	if strings.Contains(fmt.Sprintf("%v %+v", err, p.Health()), "Tr0ub4dor") {
		t.Errorf("the password is in %v", err)
	}
}

// TestHostThatIsDownIsPassedOver by publisher and subscriber, whatever host they begin with.
func TestHostThatIsDownIsPassedOver(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(testenv.AMQPURL(t))
	if err != nil {
		t.Fatal(err)
	}
	up := u.Host
	down := make([]string, 3)
	for i := range down {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		down[i] = l.Addr().String()
		_ = l.Close()
	}
	u.Host = down[0] // which Hosts replaces
	name := topic(t)
	hosts := []string{down[1], up, down[2]}
	for range 5 {
		p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(u.String()), Hosts: hosts})
		if err := p.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustConfirm(t, p, name, newMessage("x"))
		if route := p.Route("t"); !strings.HasPrefix(route, strings.Join(hosts, ",")+"/ ") {
			t.Errorf("route = %q", route)
		}
	}
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue(u.String()), Hosts: hosts})
	take(t, subscribe(t, s, name), "x", "x", "x", "x", "x")

	_, err = newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue(u.String()), Hosts: down}).Subscribe(t.Context(), name)
	for _, host := range down {
		if err == nil || !strings.Contains(err.Error(), "dial tcp "+host) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error = %v; want it to name %s", err, host)
		}
	}
	for _, host := range []string{"", "user:secret@host", "host/path", "host:port", "a,b"} {
		_, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurableQueue(nowhere), Hosts: []string{"host", host}})
		if err == nil || !strings.Contains(err.Error(), "Hosts[1]: ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: error = %v", host, err)
		}
	}
}

// TestCredentialsAreAskedForAtEachConnect, and shown by no error.
func TestCredentialsAreAskedForAtEachConnect(t *testing.T) {
	t.Parallel()
	name, config := topic(t), amqp.DurableQueue(strings.Replace(testenv.AMQPURL(t), "guest:guest@", "nobody:old@", 1))
	quickly(&config)
	w := wired(&config)
	var asked atomic.Int64
	password := func(context.Context) (string, string, error) {
		switch asked.Add(1) {
		case 1:
			return "", "", errors.New("the vault is sealed")
		case 2:
			return "guest", "expired-password", nil
		}
		return "guest", "guest", nil
	}
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Credentials: password})
	for _, says := range []string{"credentials: the vault is sealed", "connect to"} {
		_, err := s.Subscribe(t.Context(), name)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "expired-password") {
			t.Errorf("error = %v", err)
		}
	}
	messages := subscribe(t, s, name)
	before := asked.Load()
	w.cut()
	await(t, "another login", func() bool { return asked.Load() > before })
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Credentials: password})
	awaitConfirm(t, p, name, "x")
	take(t, messages, "x")

	config.Connection.AmqpConfig.SASL = []amqp091.Authentication{&amqp091.PlainAuth{}}
	_, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: config, Credentials: password})
	if err == nil || !strings.Contains(err.Error(), "Credentials: ") {
		t.Errorf("error = %v", err)
	}
}
