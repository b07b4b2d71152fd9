package postgres_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

// A service makes its tables at start and writes events in the transactions
// in which it changes its own.
func Example() {
	ctx := context.Background()
	run := func() error {
		pool, err := pgxpool.New(ctx, "postgres://localhost/orders")
		if err != nil {
			return err
		}
		defer pool.Close()
		applied, err := postgres.Migrate(ctx, pool, postgres.Config{})
		if err != nil {
			return err
		}
		for _, m := range applied {
			fmt.Println("applied", m.Number, m.Name)
		}
		store, err := postgres.New(pool, postgres.Config{})
		if err != nil {
			return err
		}
		outbox, err := producer.New(store, producer.Config{Name: "orders"})
		if err != nil {
			return err
		}
		return outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			id := uuid.NewString()
			if _, err := w.DB().Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
				return err
			}
			_, err := w.Write(ctx, producer.Event{
				Topic: "order.placed", Key: id, Source: "order/" + id, Version: 1, Payload: []byte(`{}`),
			})
			return err
		})
	}
	if err := run(); err != nil {
		fmt.Println(err)
	}
}

// A service on database/sql, or on a library above it, writes events in the transactions that
// it has anyway. One pool serves both.
func ExampleNewSQL() {
	ctx := context.Background()
	run := func() error {
		pool, err := pgxpool.New(ctx, "postgres://localhost/orders")
		if err != nil {
			return err
		}
		defer pool.Close()
		db := stdlib.OpenDBFromPool(pool) // what sqlx, GORM or ent is given
		defer db.Close()
		store, err := postgres.NewSQL(pool, postgres.Config{})
		if err != nil {
			return err
		}
		outbox, err := producer.New(store, producer.Config{Name: "orders"})
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // after a commit it does nothing
		id := uuid.NewString()
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
			return err
		}
		w := outbox.Tx(tx)
		_, err = w.Write(ctx, producer.Event{
			Topic: "order.placed", Key: id, Source: "order/" + id, Version: 1, Payload: []byte(`{}`),
		})
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	if err := run(); err != nil {
		fmt.Println(err)
	}
}

// A trigger writes events, whoever changes the table: psql, a service in another language, or a job
// in the database. They are those that a writer in Go would have written.
func Example_outboxWrite() {
	ctx := context.Background()
	run := func() error {
		pool, err := pgxpool.New(ctx, "postgres://localhost/orders")
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = pool.Exec(ctx, `
CREATE FUNCTION order_placed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM boxpair.outbox_write(
        producer => 'orders', topic => 'order.placed', key => NEW.id::text,
        source => 'order/' || NEW.id, version => 1,
        payload => convert_to(to_jsonb(NEW)::text, 'UTF8'));
    RETURN NULL;
END $$;
CREATE TRIGGER order_placed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION order_placed()`)
		return err
	}
	if err := run(); err != nil {
		fmt.Println(err)
	}
}

// A handler that only queues costs one round trip: the claim of the message, its effects, its
// events and the COMMIT go to the database together.
func ExampleAtCommit() {
	ctx := context.Background()
	run := func() error {
		pool, err := pgxpool.New(ctx, "postgres://localhost/stock")
		if err != nil {
			return err
		}
		defer pool.Close()
		store, err := postgres.New(pool, postgres.Config{})
		if err != nil {
			return err
		}
		outbox, err := producer.New(store, producer.Config{Name: "stock"})
		if err != nil {
			return err
		}
		inbox, err := consumer.New(store, consumer.Config{Service: "stock"}, consumer.WithOutbox(outbox))
		if err != nil {
			return err
		}
		_, err = inbox.Handle("reserve", func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			sku := w.Event().Key
			if err := postgres.AtCommit(w.DB(), "UPDATE stock SET reserved = reserved + 1 WHERE sku = $1", sku); err != nil {
				return err
			}
			_, err := w.Write(ctx, producer.Event{Topic: "stock.reserved", Key: sku})
			return err
		}, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Optimistic: true})
		return err
	}
	if err := run(); err != nil {
		fmt.Println(err)
	}
}
