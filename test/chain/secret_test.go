package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport/amqp"
)

// The canaries must not appear anywhere.
const (
	canaryPassword = "canary-password"
	canaryPayload  = "canary-payload"
	canaryHeader   = "canary-header"
)

// logs collects logs of every level, and errors returned by the library.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug - 4}))
}

// wants checks that the log holds each of texts, since otherwise the test proves nothing, and no
// canary.
func (l *logs) wants(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		eventually(t, fmt.Sprintf("a log with %q", text), func() bool { return strings.Contains(l.String(), text) })
	}
	noCanary(t, "the log", l.String())
}

func noCanary(t *testing.T, what, text string) {
	t.Helper()
	for _, canary := range []string{canaryPassword, canaryPayload, canaryHeader} {
		if strings.Contains(text, canary) || strings.Contains(text, fmt.Sprintf("%x", canary)) {
			t.Errorf("%s tells %s:\n%s", what, canary, text)
		}
	}
}

// with returns a URL with the canary as its password and another host, if host is not "".
func with(t *testing.T, address, user, host string) string {
	t.Helper()
	u, err := url.Parse(address)
	ok(t, err)
	if user == "" {
		user = u.User.Username()
	}
	u.User = url.UserPassword(user, canaryPassword)
	if host != "" {
		u.Host = host
	}
	return u.String()
}

// refusing returns an address where no process listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer l.Close()
	return l.Addr().String()
}

// loginOf makes a role for one test with the canary as its password, and returns url with the
// role's login.
func loginOf(t *testing.T, url string) string {
	t.Helper()
	role := testenv.Name(t)
	admin, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	_, err = admin.Exec(t.Context(), `CREATE ROLE "`+role+`" LOGIN SUPERUSER PASSWORD '`+canaryPassword+`'`)
	ok(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := admin.Exec(ctx, `DROP ROLE "`+role+`"`)
		ok(t, errors.Join(err, admin.Close(ctx)))
	})
	return with(t, url, role, "")
}

// canary is an event that is hard to send: nothing listens to its topic.
func canary(topic, key string) producer.Event {
	e := numbered(topic, key, 1)
	e.Payload, e.Headers = []byte(canaryPayload), map[string]string{"token": canaryHeader}
	return e
}

func write(t *testing.T, outbox *producer.Outbox[pgx.Tx], events ...producer.Event) {
	t.Helper()
	ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.Write(ctx, events...)
		return err
	}))
}

// publisherAt returns a publisher that logs, at an address.
func publisherAt(t *testing.T, l *logs, address string) *amqp.Publisher {
	t.Helper()
	p, err := amqp.NewPublisher(amqp.PublisherConfig{
		AMQP: amqp.DurablePubSub(address, ""), Logger: l.logger(), ConfirmTimeout: 2 * time.Second, MaxBody: 1000,
	})
	ok(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestFailedPublishesTellNoSecrets(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(t *testing.T) string{
		"unroutable or too large": func(t *testing.T) string { return testenv.AMQPURL(t) },
		"login refused":           func(t *testing.T) string { return with(t, testenv.AMQPURL(t), "nobody", "") },
		"connection refused":      func(t *testing.T) string { return with(t, testenv.AMQPURL(t), "", refusing(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			works := strings.HasPrefix(name, "unroutable")
			l := &logs{}
			_, url := newPostgres(t)
			db := openPostgres(t, loginOf(t, url))
			outbox, err := producer.New(db.store, producer.Config{Name: "shop", Logger: l.logger()})
			ok(t, err)
			topic := newTopic(t)
			if !works {
				topic = testenv.Name(t)
			}
			large := canary(topic, "large")
			large.Payload = bytes.Repeat([]byte(canaryPayload), 100)
			write(t, outbox, canary(topic, "unroutable"), large)
			relay, stop := startRelay(t, outbox, publisherAt(t, l, address(t)), relay.Config{
				Logger: l.logger(), MaxAttempts: 2, RouteGrace: time.Millisecond, RouteProbeInterval: 10 * time.Millisecond,
				Backoff: relay.Backoff{Initial: 10 * time.Millisecond},
			})
			if works {
				eventually(t, "a dead event", func() bool {
					return db.number(`SELECT count(*) FROM boxpair.outbox_parked WHERE state = 'dead'`) == 1
				})
			}
			eventually(t, "a route that is down", func() bool { return len(relay.Health().Routes) > 0 })
			health := fmt.Sprintf("%+v", relay.Health())
			stop()
			l.wants(t, "error=")
			noCanary(t, "the health", health)
			stored := strings.Join(db.list(`SELECT error FROM boxpair.outbox_attempts
				UNION ALL SELECT coalesce(last_error, '') FROM boxpair.outbox_parked
				UNION ALL SELECT coalesce(why, '') || coalesce(last_error, '') FROM boxpair.outbox_status`), "\n")
			noCanary(t, "a stored error", stored)
			if works && len(stored) < 20 {
				t.Errorf("stored errors: %q", stored)
			}
		})
	}
}

func TestFailedHandlersTellNoSecrets(t *testing.T) {
	t.Parallel()
	l := &logs{}
	shop, _ := newPostgres(t)
	_, url := newPostgres(t)
	stock := openPostgres(t, loginOf(t, url))
	topic := newTopic(t, "stock")
	sub, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP: amqp.DurablePubSub(with(t, testenv.AMQPURL(t), "guest", ""), "stock"), Logger: l.logger(),
	})
	ok(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	if err := sub.SubscribeInitialize(topic); err == nil {
		t.Error("logged in with the wrong password")
	} else {
		noCanary(t, "an error", err.Error())
	}
	outbox := outboxOf(t, shop)
	startRelay(t, outbox, newPublisher(t), relay.Config{})
	s := startService(t, stock, nil, newSubscriber(t, "stock"), topic,
		consumer.Config{Service: "stock", Logger: l.logger()},
		consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1, MaxAttempts: 2}, Parked: consumer.ParkedConfig{MinBackoff: 1}, Order: consumer.OrderConfig{ByKey: true}},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
			if w.Event().Key == "panic" {
				panic(msg) // not to be printed
			}
			// The detail of this error shows the row.
			return stock.exec(ctx, w.DB(), `INSERT INTO effects (consumer, dispatch, key, content) VALUES ($1, $2, $3, NULL)`,
				string(msg.Payload), msg.Metadata["token"], "key")
		})
	write(t, outbox, canary(topic, "detail"), canary(topic, "panic"))
	eventually(t, "dead messages", func() bool {
		return stock.number(`SELECT count(*) FROM boxpair.inbox_parked WHERE state = 'dead'`) == 2
	})
	if c := s.handler.Counters(); c.Panics == 0 {
		t.Errorf("counters: %+v", c)
	}
	l.wants(t, "23502", "panic")
	noCanary(t, "a stored error", strings.Join(stock.list(`SELECT coalesce(last_error, '') FROM boxpair.inbox_parked
		UNION ALL SELECT coalesce(last_error, '') FROM boxpair.inbox_attempts`), "\n"))
}

func TestUnreachableDatabaseTellsNoPassword(t *testing.T) {
	t.Parallel()
	l := &logs{}
	_, address := newPostgres(t)
	db := openPostgres(t, with(t, address, "", refusing(t)))
	outbox, err := producer.New(db.store, producer.Config{Name: "shop", Logger: l.logger()})
	ok(t, err)
	err = outbox.Transact(t.Context(), func(context.Context, *producer.Writer[pgx.Tx]) error { return errors.New("reached") })
	if err == nil || strings.Contains(err.Error(), "reached") {
		t.Fatalf("transaction on a database that is not there: %v", err)
	}
	noCanary(t, "an error", err.Error())
	relay, stop := startRelay(t, outbox, newPublisher(t), relay.Config{Logger: l.logger()})
	inbox, err := consumer.New(db.store, consumer.Config{Service: "stock", Logger: l.logger()})
	ok(t, err)
	_, err = inbox.Handle("apply", func(context.Context, *consumer.Work[pgx.Tx], *message.Message) error { return nil }, consumer.HandlerConfig{})
	ok(t, err)
	start(t, inbox.Run)
	eventually(t, "a relay that has noticed", func() bool { return relay.Health().DatabaseError != "" })
	noCanary(t, "the health", relay.Health().DatabaseError)
	l.wants(t, "refused", "consumer=")
	stop()
}
