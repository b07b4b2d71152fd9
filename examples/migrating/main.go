// Command migrating runs a service with stock Watermill, and then the same service with boxpair on the
// same queue. docs/migrating.md shows what changes between them.
//
//	DATABASE_URL=postgres://… AMQP_URL=amqp://… go run ./examples/migrating
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/examples/migrating/after"
	"github.com/boxpair/boxpair/examples/migrating/before"
	"github.com/boxpair/boxpair/store/postgres"
)

func main() {
	if err := run(context.Background(), os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL"), "migrating.placed"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, database, broker, topic string) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY); CREATE TABLE IF NOT EXISTS shipments (id text PRIMARY KEY)`)
	if err != nil {
		return err
	}
	if err := before.Run(ctx, database, broker, topic, watermill.NewUUID()); err != nil {
		return err
	}
	fmt.Println("stock Watermill: order shipped")
	if _, err := postgres.Migrate(ctx, pool, postgres.Config{}); err != nil {
		return err
	}
	if err := after.Run(ctx, database, broker, topic, watermill.NewUUID()); err != nil {
		return err
	}
	fmt.Println("boxpair: order shipped")
	return nil
}
