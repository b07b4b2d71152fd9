package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// store is a store for both sides; both stores of the library implement it.
type store[TX any] interface {
	outbox.Store[TX]
	inbox.Store[TX]
}

// database is the database of one service: the library's store, and just enough SQL to run the
// example on two databases. Placeholders are $1, $2, … in the order of their first use.
type database[TX any] interface {
	Store() store[TX]
	// Exec and Row run a statement in tx; Row returns sql.ErrNoRows for an empty result.
	Exec(ctx context.Context, tx TX, query string, args ...any) (affected int64, err error)
	Row(ctx context.Context, tx TX, query string, args []any, dest ...any) error
	// Query reads rows outside of any transaction, for progress and audit.
	Query(ctx context.Context, query string, each func(scan func(dest ...any) error) error) error
	// Table returns the SQL name of one of the library's tables. IDs replaces {id} in a query by
	// the column of dispatch IDs as lower-case text.
	Table(name string) string
	IDs(query string) string
	Migrate(ctx context.Context, schema []string) error
	Close()
}

// opener opens the database of a service.
type opener[TX any] func(ctx context.Context, opts options, service string) (database[TX], error)

// The services. Each has a database of its own.
const (
	serviceOrders    = "orders"
	serviceInventory = "inventory"
	servicePayment   = "payment"
)

var services = []string{serviceOrders, serviceInventory, servicePayment}

// Every service records the effects of its handlers in a table without any unique constraint, so
// that a second effect of a message would show. A counter per customer numbers the events in order.
const commonSchema = `
CREATE TABLE IF NOT EXISTS effects (id {serial}, consumer text NOT NULL, dispatch_id text NOT NULL, topic text NOT NULL, customer text NOT NULL, seq bigint NOT NULL);
CREATE TABLE IF NOT EXISTS sequences (customer text PRIMARY KEY, seq bigint NOT NULL)`

var schemas = map[string]string{
	serviceOrders: `
CREATE TABLE IF NOT EXISTS runs (id bigint PRIMARY KEY, orders bigint NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, run bigint NOT NULL, customer text NOT NULL, sku text NOT NULL, quantity bigint NOT NULL, amount bigint NOT NULL, status text NOT NULL);
CREATE INDEX IF NOT EXISTS orders_run ON orders (run, status)`,
	serviceInventory: `
CREATE TABLE IF NOT EXISTS supplies (run bigint NOT NULL, sku text NOT NULL, quantity bigint NOT NULL, PRIMARY KEY (run, sku));
CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, quantity bigint NOT NULL CHECK (quantity >= 0));
CREATE TABLE IF NOT EXISTS reservations (order_id text PRIMARY KEY, sku text NOT NULL, quantity bigint NOT NULL, status text NOT NULL)`,
	servicePayment: `
CREATE TABLE IF NOT EXISTS deposits (run bigint NOT NULL, customer text NOT NULL, amount bigint NOT NULL, PRIMARY KEY (run, customer));
CREATE TABLE IF NOT EXISTS accounts (customer text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0));
CREATE TABLE IF NOT EXISTS payments (order_id text PRIMARY KEY, customer text NOT NULL, amount bigint NOT NULL, status text NOT NULL)`,
}

// schemaOf returns the statements that make the tables of service.
func schemaOf(service, serial string) []string {
	text := strings.ReplaceAll(commonSchema+";"+schemas[service], "{serial}", serial)
	return strings.Split(strings.TrimSpace(text), ";")
}

// openAll opens the databases of all services.
func openAll[TX any](ctx context.Context, opts options, open opener[TX]) (map[string]database[TX], error) {
	dbs := make(map[string]database[TX], len(services))
	for _, service := range services {
		db, err := open(ctx, opts, service)
		if err != nil {
			closeAll(dbs)
			return nil, fmt.Errorf("open the database of %s: %w", service, err)
		}
		dbs[service] = db
	}
	return dbs, nil
}

func closeAll[TX any](dbs map[string]database[TX]) {
	for _, db := range dbs {
		db.Close()
	}
}

// number reads one number, or 0 if the query returns no row.
func number[TX any](ctx context.Context, db database[TX], query string) (n int64, err error) {
	err = db.Query(ctx, query, func(scan func(...any) error) error { return scan(&n) })
	return n, err
}
