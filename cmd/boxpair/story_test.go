package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// story is a shop and its stock, on one database and a virtual host of their own.
type story struct {
	t        *testing.T
	database string
	broker   string
	outbox   *producer.Outbox[pgx.Tx]
	inbox    *consumer.Inbox[pgx.Tx]
	reserve  *consumer.Handler[pgx.Tx]
	variable map[string]string
}

func newStory(t *testing.T) *story {
	t.Helper()
	s := &story{t: t, database: testenv.Postgres(t), variable: make(map[string]string)}
	vhost := testenv.Name(t)
	testenv.Ctl(t, "add_vhost", vhost)
	t.Cleanup(func() { testenv.Ctl(t, "delete_vhost", vhost) })
	u, err := url.Parse(testenv.AMQPURL(t))
	ok(t, err)
	testenv.Ctl(t, "set_permissions", "--vhost", vhost, u.User.Username(), ".*", ".*", ".*")
	u.Path = "/" + vhost
	s.broker = u.String()
	if status, _, errs := call(t, nil, "migrate", "up", "--database", s.database); status != exitOK {
		t.Fatal(errs)
	}
	pool, err := pgxpool.New(t.Context(), s.database)
	ok(t, err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Config{})
	ok(t, err)
	s.outbox, err = producer.New(store, producer.Config{Name: "shop"})
	ok(t, err)
	s.inbox, err = consumer.New(store, consumer.Config{Service: "stock"})
	ok(t, err)
	s.reserve, err = s.inbox.Handle("reserve", func(context.Context, *consumer.Work[pgx.Tx], *message.Message) error { return nil },
		consumer.HandlerConfig{Topic: "order.placed"})
	ok(t, err)
	return s
}

func (s *story) place(order string) {
	s.t.Helper()
	ok(s.t, s.outbox.Transact(s.t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		written, err := w.Write(ctx, producer.Event{Topic: "order.placed", Key: order, Source: "order/" + order, Version: 1, Payload: []byte(payload)})
		for _, one := range written {
			s.variable["ORDER"] = one.String()
		}
		return err
	}))
}

// stock starts the consumer, and returns the function that stops it.
func (s *story) stock() (stop func()) {
	s.t.Helper()
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(s.broker, "stock")})
	ok(s.t, err)
	messages, err := subscriber.Subscribe(context.WithoutCancel(s.t.Context()), "order.placed")
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

// typed runs a command of the page, and returns its output as a terminal shows it, with whole lines.
func (s *story) typed(command string) string {
	s.t.Helper()
	for name, value := range s.variable {
		command = strings.ReplaceAll(command, "$"+name, value)
	}
	env := []string{"BOXPAIR_OUTBOX_URL=" + s.database, "BOXPAIR_INBOX_URL=" + s.database, "BOXPAIR_AMQP_URL=" + s.broker}
	status, out, errs := call(s.t, env, strings.Fields(command)[1:]...)
	if status != exitOK {
		errs += fmt.Sprintf("[exit status %d]\n", status)
	}
	return strings.ReplaceAll(out+errs, "\n              ", " ")
}

// shows waits until a command prints what the page says.
func (s *story) shows(command, want string) {
	s.t.Helper()
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", "[^\n]*")
	pattern = strings.ReplaceAll("\n"+pattern, "\n[^\n]*\n", "\n(?:[^\n]*\n)*") // a line of its own is any number of lines
	page := regexp.MustCompile(`\A` + pattern + `\z`)
	await(s.t, func() error {
		if got := s.typed(command); !page.MatchString("\n" + got) {
			return fmt.Errorf("$ %s\n%s\nwant:\n%s", command, got, want)
		}
		return nil
	})
}

// TestQueueThatIsGoneIsHealedByOneCommand types the commands of docs/at-night.md.
func TestQueueThatIsGoneIsHealedByOneCommand(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/at-night.md")
	ok(t, err)
	blocks := regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 5 {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	s := newStory(t)
	stop := s.stock()
	d := start(t, "--outbox", s.database, "--amqp", s.broker, "--poll", "50ms")
	s.place("1")
	await(t, func() error {
		if out := s.typed("boxpair why 1"); !strings.Contains(out, "applied     by stock/reserve") {
			return errors.New(out)
		}
		return nil
	})
	stop()
	ok(t, onChannel(s.broker, func(c *amqp091.Channel) error {
		_, err := c.QueueDelete("order.placed_stock", false, false, false)
		return err
	}))
	s.place("7")
	s.place("42")
	for i, block := range blocks {
		if i == len(blocks)-1 { // stock has started again
			defer s.stock()()
		}
		for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			s.shows(command, strings.TrimSuffix(want, "\n")+"\n")
		}
	}
	d.stop(t)
}
