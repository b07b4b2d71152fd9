package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// await looks until a query says yes.
func await(t *testing.T, pool *pgxpool.Pool, query string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		var yes bool
		err := pool.QueryRow(t.Context(), query).Scan(&yes)
		if err == nil && yes {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("waited for too long: %s: %v", query, err)
		case <-tick.C:
		}
	}
}

// TestOrdersArePaidThoughPaymentStopsMeanwhile, each once. The relay is another process's.
func TestOrdersArePaidThoughPaymentStopsMeanwhile(t *testing.T) {
	t.Parallel()
	database, broker, prefix := testenv.Postgres(t), testenv.AMQPURL(t), testenv.Name(t)+"."
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := postgres.Migrate(t.Context(), pool, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurablePubSub(broker, "")})
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	sender, err := relay.NewStandalone(store, publisher, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}

	start := func(name string, part func(context.Context) error) (stop func()) {
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		running.Go(func() {
			if err := part(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		stop = func() {
			cancel()
			running.Wait()
		}
		t.Cleanup(stop)
		return stop
	}
	service := func(name string) (stop func()) {
		return start(name, func(ctx context.Context) error { return run(ctx, name, database, broker, prefix, 20*time.Millisecond) })
	}
	stops := []func(){start("relay", sender.Run), service("stock"), service("orders")}
	payment := service("payment")
	await(t, pool, `SELECT count(*) > 2 FROM orders WHERE paid`)
	payment()
	await(t, pool, `SELECT count(*) > (SELECT count(*) FROM charges) + 2 FROM reservations`)
	var charged int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM charges`).Scan(&charged); err != nil {
		t.Fatal(err)
	}
	stops = append(stops, service("payment"))
	await(t, pool, fmt.Sprintf(`SELECT count(*) > %d FROM charges`, charged)) // the new process has begun
	await(t, pool, `SELECT count(*) FILTER (WHERE paid) > 20 FROM orders`)
	for _, stop := range stops {
		stop()
	}
	for _, table := range []string{"reservations", "charges"} {
		var twice []int64
		rows, err := pool.Query(t.Context(), `SELECT id FROM `+table+` GROUP BY id HAVING count(*) > 1`)
		if err == nil {
			twice, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		if err != nil || len(twice) > 0 {
			t.Errorf("%s: twice are %v, %v", table, twice, err)
		}
	}
	var unpaid int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM orders o WHERE paid AND NOT EXISTS (SELECT FROM charges c WHERE c.id = o.id)`).Scan(&unpaid); err != nil || unpaid > 0 {
		t.Errorf("%d orders were paid without a charge, %v", unpaid, err)
	}
}

func TestUnknownServiceIsRefused(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), "mail", "", "", "", time.Second); err == nil {
		t.Error("it runs")
	}
}
