package producer_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
)

// A service runs a janitor beside its relay, in as many processes as it likes. What
// is past its retention goes in batches; what is not delivered stays.
func ExampleJanitor() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	janitor, err := producer.NewJanitor(store, producer.JanitorConfig{Retention: 30 * 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}

	// In a service: go janitor.Run(ctx)
	report, err := janitor.RunOnce(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d events removed\n", report.Events)
	// Output: 0 events removed
}

// exampleStore returns a store over a database in a directory of its own.
func exampleStore(ctx context.Context) (*sqlite.Store, func()) {
	dir, err := os.MkdirTemp("", "boxpair")
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqlite.Open(filepath.Join(dir, "orders.db"))
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
	return store, func() {
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}
}
