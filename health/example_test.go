package health_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
)

// An endpoint of a service asks how far its outbox is behind. No relay runs here, and the service
// wants to know of two events that wait.
func Example() {
	ctx := context.Background()
	outbox, done := openOutbox(ctx)
	defer done()
	check, err := health.New(health.Config{UnhealthyAge: time.Hour, DegradedPending: 2})
	if err != nil {
		log.Fatal(err)
	}
	for version := range int64(2) {
		err := outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
			_, err := w.Write(ctx, producer.Event{Topic: "order.placed", Key: "42", Source: "order/42", Version: version + 1})
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
		stats, err := outbox.Stats(ctx)
		if err != nil {
			log.Fatal(err)
		}
		report := check.Outbox(stats)
		fmt.Println(report.State, report.Problems)
	}
	// Output:
	// degraded [degraded: no relay runs]
	// degraded [degraded: pending events: 2 degraded: no relay runs]
}

func openOutbox(ctx context.Context) (*producer.Outbox[*sql.Tx], func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqlite.Open(filepath.Join(dir, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		log.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		log.Fatal(err)
	}
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	return outbox, func() { _, _ = db.Close(), os.RemoveAll(dir) }
}
