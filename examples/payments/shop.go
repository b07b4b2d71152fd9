package main

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
)

// shop is the service's database, on SQLite or PostgreSQL.
type shop interface {
	prepare(ctx context.Context) error
	place(ctx context.Context, order string) error
	serve(ctx context.Context, providerURL string) error
	report(ctx context.Context, r *Report) error
	close()
}

// database is a shop on a store.
type database[TX any] struct {
	store interface {
		outbox.Store[TX]
		inbox.Store[TX]
	}
	outbox  *producer.Outbox[TX]
	exec    func(ctx context.Context, tx TX, statement string, args ...any) error
	count   func(ctx context.Context, statement string, into ...any) error
	migrate func(ctx context.Context) error
	end     func()
}

const schema = "boxpair_example_payments"

var tables = []string{
	`CREATE TABLE orders (id text PRIMARY KEY, receipt text)`,
	`CREATE TABLE shipments (id text)`,
}

// open opens the database named in env.
func open(ctx context.Context, env []string) (shop, error) {
	value := func(name string) string {
		i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		if i < 0 {
			return ""
		}
		return env[i][len(name)+1:]
	}
	if url := value(envDatabase); url != "" {
		return openPostgres(ctx, url)
	}
	return openSQLite(ctx, value(envFile))
}

func openPostgres(ctx context.Context, url string) (shop, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("DATABASE_URL is not a valid PostgreSQL URL") // the error may show the password
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	store, err := postgres.New(pool, postgres.Config{Schema: schema})
	if err != nil {
		return nil, err
	}
	d := &database[pgx.Tx]{
		store: store, end: pool.Close,
		exec: func(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
			_, err := tx.Exec(ctx, statement, args...)
			return err
		},
		count: func(ctx context.Context, statement string, into ...any) error {
			return pool.QueryRow(ctx, statement).Scan(into...)
		},
		migrate: func(ctx context.Context) error {
			if _, err := pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`); err != nil {
				return err
			}
			_, err := postgres.Migrate(ctx, pool, postgres.Config{Schema: schema})
			return err
		},
	}
	d.outbox, err = producer.New(store, producer.Config{Name: "shop"})
	return d, err
}

func openSQLite(_ context.Context, path string) (shop, error) {
	db, err := sqlite.Open(path)
	if err != nil {
		return nil, err
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	d := &database[*sql.Tx]{
		store: store, end: func() { _ = db.Close() },
		exec: func(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
			_, err := tx.ExecContext(ctx, statement, args...)
			return err
		},
		count: func(ctx context.Context, statement string, into ...any) error {
			return db.QueryRowContext(ctx, statement).Scan(into...)
		},
		migrate: func(ctx context.Context) error {
			_, err := sqlite.Migrate(ctx, db, sqlite.Config{})
			return err
		},
	}
	d.outbox, err = producer.New(store, producer.Config{Name: "shop"})
	return d, err
}

func (db *database[TX]) close() { db.end() }

// prepare makes the library's tables and the shop's tables.
func (db *database[TX]) prepare(ctx context.Context) error {
	if err := db.migrate(ctx); err != nil {
		return err
	}
	return db.store.Transact(ctx, func(ctx context.Context, tx TX) error {
		for _, statement := range tables {
			if err := db.exec(ctx, tx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// place writes an order and its event.
func (db *database[TX]) place(ctx context.Context, order string) error {
	return db.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[TX]) error {
		if err := db.exec(ctx, w.DB(), `INSERT INTO orders (id) VALUES ($1)`, order); err != nil {
			return err
		}
		_, err := w.Write(ctx, producer.Event{
			Topic: "order.placed", Key: order, Source: "order/" + order, Version: 1, Payload: []byte(order),
		})
		return err
	})
}

func (db *database[TX]) report(ctx context.Context, r *Report) error {
	var shipments int
	err := db.count(ctx, `SELECT (SELECT count(*) FROM orders WHERE receipt IS NOT NULL),
		(SELECT count(DISTINCT id) FROM shipments), (SELECT count(*) FROM shipments)`, &r.Paid, &r.Shipped, &shipments)
	r.ShippedTwice = shipments - r.Shipped
	return err
}
