package shop

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

const (
	// Topic is the topic that the shop writes.
	Topic = "order.placed"
	// Queue is the queue of the stock.
	Queue = Topic + "_stock"
	// Consumer is the consumer of the stock.
	Consumer = "stock/reserve"
)

// Shop is the shop and the stock.
type Shop struct {
	Pool   *pgxpool.Pool
	Store  *postgres.Store
	Outbox *producer.Outbox[pgx.Tx]
	Inbox  *consumer.Inbox[pgx.Tx]
	// Latest is the dispatch ID of the latest event.
	Latest uuid.UUID

	t        testing.TB
	database string
	broker   string
	reserve  *consumer.Handler[pgx.Tx]
}

// New makes a shop and a stock without events. Neither the stock nor a relay runs.
func New(t testing.TB) *Shop {
	t.Helper()
	s := &Shop{t: t, database: testenv.Postgres(t), broker: virtualHost(t)}
	var err error
	s.Pool, err = pgxpool.New(t.Context(), s.database)
	ok(t, err)
	t.Cleanup(s.Pool.Close)
	_, err = postgres.Migrate(t.Context(), s.Pool, postgres.Config{})
	ok(t, err)
	s.Store, err = postgres.New(s.Pool, postgres.Config{})
	ok(t, err)
	s.Outbox, err = producer.New(s.Store, producer.Config{Name: "shop"})
	ok(t, err)
	s.Inbox, err = consumer.New(s.Store, consumer.Config{Service: "stock"})
	ok(t, err)
	s.reserve, err = s.Inbox.Handle("reserve", func(context.Context, *consumer.Work[pgx.Tx], *message.Message) error { return nil },
		consumer.HandlerConfig{Topic: Topic})
	ok(t, err)
	return s
}

// virtualHost returns the URL of a virtual host of the test's own.
func virtualHost(t testing.TB) string {
	t.Helper()
	name := testenv.Name(t)
	testenv.Ctl(t, "add_vhost", name)
	t.Cleanup(func() { testenv.Ctl(t, "delete_vhost", name) })
	u, err := url.Parse(testenv.AMQPURL(t))
	ok(t, err)
	testenv.Ctl(t, "set_permissions", "--vhost", name, u.User.Username(), ".*", ".*", ".*")
	u.Path = "/" + name
	return u.String()
}

// Place has the shop place an order, whose number is the key of its event.
func (s *Shop) Place(order string) {
	s.t.Helper()
	ok(s.t, s.Outbox.Transact(s.t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		written, err := w.Write(ctx, producer.Event{Topic: Topic, Key: order, Source: "order/" + order, Version: 1, Payload: []byte("{}")})
		for _, one := range written {
			s.Latest = one
		}
		return err
	}))
}

// StartStock starts the consumer, and returns the function that stops it.
func (s *Shop) StartStock() (stop func()) {
	s.t.Helper()
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(s.broker, "stock")})
	ok(s.t, err)
	messages, err := subscriber.Subscribe(context.WithoutCancel(s.t.Context()), Topic)
	ok(s.t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for msg := range messages {
			if s.reserve.Consume(msg) != nil {
				msg.Nack()
				continue
			}
			msg.Ack()
		}
	}()
	return func() {
		_ = subscriber.Close()
		<-ended
	}
}

// StartRelay starts the relay of the command, and returns it with the address of its metrics.
func (s *Shop) StartRelay() (relay *Started, address string) {
	s.t.Helper()
	relay = Start(s.t, s.command("relay", "--listen", "127.0.0.1:0", "--poll", "50ms"))
	Until(s.t, func() error {
		at := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(relay.Log())
		if at == nil {
			return errors.New(relay.Log())
		}
		address = at[1]
		return nil
	})
	return relay, address
}

// LoseQueue lets order 1 arrive, stops the stock, deletes its queue, and places orders 7 and 42.
func (s *Shop) LoseQueue() {
	s.t.Helper()
	stop := s.StartStock()
	s.Place("1")
	Until(s.t, func() error {
		if out := s.Type("boxpair why 1"); !strings.Contains(out, "applied     by "+Consumer) {
			return errors.New(out)
		}
		return nil
	})
	stop()
	conn, err := amqp091.Dial(s.broker)
	ok(s.t, err)
	channel, err := conn.Channel()
	ok(s.t, err)
	_, err = channel.QueueDelete(Queue, false, false, false)
	ok(s.t, errors.Join(err, conn.Close()))
	s.Place("7")
	s.Place("42")
}

// Type runs a command line that begins with boxpair, and returns what a terminal shows, with whole
// lines. $ORDER is the latest event.
func (s *Shop) Type(line string) string {
	s.t.Helper()
	words := strings.Fields(strings.ReplaceAll(line, "$ORDER", s.Latest.String()))
	if len(words) == 0 || words[0] != "boxpair" {
		s.t.Fatalf("%q is no command of boxpair", line)
	}
	return strings.ReplaceAll(run(s.t, s.command(words[1:]...)), "\n              ", " ")
}

// command returns the command with its databases and its broker.
func (s *Shop) command(args ...string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command(Command(s.t), args...) //nolint:noctx // Started.Stop ends what runs on
	cmd.Env = []string{
		"PATH=" + filepath.Dir(Command(s.t)), "HOME=" + os.TempDir(),
		"BOXPAIR_OUTBOX_URL=" + s.database, "BOXPAIR_INBOX_URL=" + s.database, "BOXPAIR_AMQP_URL=" + s.broker,
	}
	return cmd
}
