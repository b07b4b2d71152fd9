package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/memory"
)

func embeddedScenario() scenario {
	return scenario{
		name: "embedded", unit: "events",
		about: "one process, a SQLite file (synchronous=FULL) and the transport in memory: transaction, relay, inbox transaction",
		variants: []variant{
			{"limit-commits", "the same rows by hand, two commits per event, nothing in between", "", 10_000, 1_500, sqliteByHand},
			{"chain", "this library, a transaction per message", "limit-commits", 10_000, 1_500, embedding{}.measure},
			{"chain-group", "this library, group commit of up to 64", "limit-commits", 20_000, 0, embedding{consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 64}}}.measure},
		},
	}
}

// sqliteFile opens a database in a directory of its own.
func (s *stage) sqliteFile(ctx context.Context) (*sql.DB, error) {
	dir, err := os.MkdirTemp("", "boxpair-bench-*")
	if err != nil {
		return nil, err
	}
	s.later(func() { _ = os.RemoveAll(dir) })
	db, err := sqlite.Open(filepath.Join(dir, "bench.db"))
	if err != nil {
		return nil, err
	}
	s.later(func() { _ = db.Close() })
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		return nil, err
	}
	for _, table := range []string{"orders (id text PRIMARY KEY, body blob)", "effects (id text, body blob)",
		"plain_outbox (id integer PRIMARY KEY, event text, body blob)", "plain_inbox (id text PRIMARY KEY)"} {
		if _, err := db.ExecContext(ctx, "CREATE TABLE "+table); err != nil {
			return nil, err
		}
	}
	return db, nil
}

// sqliteByHand commits an order with an outbox row, and then an inbox row with an effect while the
// outbox row is deleted.
func sqliteByHand(ctx context.Context, s *stage) error {
	db, err := s.sqliteFile(ctx)
	if err != nil {
		return err
	}
	return s.timed(ctx, func() (int, error) {
		for range s.n {
			id := uuid.NewString()
			for _, statements := range [][]statement{
				{{insertOrder, []any{id, payload}}, {`INSERT INTO plain_outbox (event, body) VALUES ($1, $2)`, []any{id, payload}}},
				{{`INSERT INTO plain_inbox VALUES ($1)`, []any{id}}, {`INSERT INTO effects VALUES ($1, $2)`, []any{id, payload}},
					{`DELETE FROM plain_outbox WHERE id = (SELECT min(id) FROM plain_outbox)`, nil}},
			} {
				if err := inTransaction(ctx, db, statements); err != nil {
					return 0, err
				}
			}
		}
		return s.n, nil
	})
}

func inTransaction(ctx context.Context, db *sql.DB, statements []statement) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, s.sql, s.args...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// embedding is this library in one process.
type embedding struct{ config consumer.HandlerConfig }

func (e embedding) measure(ctx context.Context, s *stage) error {
	db, err := s.sqliteFile(ctx)
	if err != nil {
		return err
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return err
	}
	broker, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	s.later(func() { _ = broker.Close() })
	relay, err := relay.New(outbox, broker, relay.Config{})
	if err != nil {
		return err
	}
	all, err := e.consume(ctx, s, store, broker)
	if err != nil {
		return err
	}
	s.background(ctx, func(ctx context.Context) { _ = relay.Run(ctx) })
	var number atomic.Int64
	return s.timed(ctx, func() (int, error) {
		err := concurrently(ctx, 4, s.n, func(ctx context.Context) error {
			return outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
				id := uuid.NewString()
				if _, err := w.DB().ExecContext(ctx, insertOrder, id, payload); err != nil {
					return err
				}
				_, err := w.Write(ctx, producer.Event{Topic: "topic-0", Key: id, Source: "order", Version: number.Add(1), Payload: payload})
				return err
			})
		})
		if err != nil {
			return 0, err
		}
		select {
		case <-all:
			return s.n, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(time.Minute):
			return 0, errors.New("not all events were applied within a minute")
		}
	})
}

// consume applies messages, and returns a channel that is closed when all are applied.
func (e embedding) consume(ctx context.Context, s *stage, store *sqlite.Store, broker *memory.Broker) (<-chan struct{}, error) {
	inbox, err := consumer.New(store, consumer.Config{Service: "bench"})
	if err != nil {
		return nil, err
	}
	handler, err := inbox.Handle("effect", func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
		_, err := w.DB().ExecContext(ctx, `INSERT INTO effects VALUES ($1, $2)`, msg.UUID, []byte(msg.Payload))
		return err
	}, e.config)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	p := newProgress(s.n)
	router.AddConsumerHandler("effect", "topic-0", broker.Subscriber("effect"), func(msg *message.Message) error {
		err := handler.Consume(msg)
		if err == nil {
			p.add()
		}
		return err
	})
	s.background(ctx, func(ctx context.Context) { _ = inbox.Run(ctx) })
	s.background(ctx, func(ctx context.Context) { _ = router.Run(ctx) })
	select {
	case <-router.Running():
		return p.all, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
