// Command signup is a service on PostgreSQL and RabbitMQ, ready for production: it signs users up
// over HTTP, and welcomes and counts each user once. docs/getting-started.md explains the program.
//
//	DATABASE_URL=postgres://… AMQP_URL=amqp://… go run ./examples/signup
//	curl -d email=ada@example.org localhost:8080/signup
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// migrate makes the library's tables, and the service's own.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := postgres.Migrate(ctx, pool, postgres.Config{}); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS users (email text PRIMARY KEY); CREATE TABLE IF NOT EXISTS welcomes (email text);
		CREATE TABLE IF NOT EXISTS signups (day date PRIMARY KEY, n integer)`)
	return err
}

// signup writes a user and its event, in one transaction.
func signup(outbox *producer.Outbox[pgx.Tx], topic string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		email := r.PostFormValue("email")
		err := outbox.Transact(r.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			if _, err := w.DB().Exec(ctx, `INSERT INTO users VALUES ($1)`, email); err != nil {
				return err
			}
			event := producer.Event{Topic: topic, Key: email, Source: "user/" + email, Version: 1, Payload: []byte(email)}
			_, err := w.Write(ctx, event)
			return err
		})
		if err != nil {
			slog.ErrorContext(r.Context(), "signup has failed", "error", err)
			http.Error(rw, "signup has failed", http.StatusInternalServerError)
			return
		}
		rw.WriteHeader(http.StatusCreated)
	}
}

// welcome welcomes a user, in the transaction of its message's inbox row.
func welcome(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	_, err := w.DB().Exec(ctx, `INSERT INTO welcomes VALUES ($1)`, string(msg.Payload))
	return err
}

// count counts a user.
func count(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
	_, err := w.DB().Exec(ctx, `INSERT INTO signups VALUES (current_date, 1) ON CONFLICT (day) DO UPDATE SET n = signups.n + 1`)
	return err
}

// run runs the service until ctx ends.
func run(ctx context.Context, database, broker, topic string, listener net.Listener) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.New(pool, postgres.Config{})
	if err := errors.Join(err, migrate(ctx, pool)); err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: "signup"})
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurablePubSub(broker, "")})
	if err != nil {
		return err
	}
	defer publisher.Close()
	relay, err := relay.New(outbox, publisher, relay.Config{})
	if err != nil {
		return err
	}
	inbox, err := consumer.New(store, consumer.Config{Service: "signup"}, consumer.WithOutbox(outbox))
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	for name, handle := range map[string]consumer.HandlerFunc[pgx.Tx]{"welcome": welcome, "count": count} {
		queue := amqp.DurablePubSub(broker, "signup."+name) // each handler has a queue
		subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: queue})
		if err != nil {
			return err
		}
		defer subscriber.Close()
		if _, err := inbox.AddHandler(router, name, topic, subscriber, handle, consumer.HandlerConfig{}); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("POST /signup", signup(outbox, topic))
	others := []boxpair.Part{server{&http.Server{Handler: mux}, listener}}
	return boxpair.Group{Outbox: outbox, Relay: relay, Inbox: inbox, Router: router, Others: others}.Run(ctx)
}

// server is an HTTP server as a part of a service.
type server struct {
	*http.Server
	listener net.Listener
}

// Run serves requests until ctx ends, and finishes those that have begun.
func (s server) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = s.Shutdown(context.WithoutCancel(ctx)) })()
	if err := s.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return s.Shutdown(context.WithoutCancel(ctx)) // waits for the requests
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	listener, err := net.Listen("tcp", "localhost:8080")
	if err == nil {
		err = run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL"), "user.signed_up", listener)
	}
	if stop(); err != nil {
		log.Fatal(err)
	}
}
