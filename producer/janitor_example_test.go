package producer_test

import (
	"context"
	"errors"
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

// After a consumer was repaired, an operator sends it again what it got wrong: the events of one
// topic from one hour. Consumers that have applied them run nothing.
func ExampleOutbox_Replay() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	outbox, err := producer.New(store, producer.Config{Name: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	from := time.Now().Add(-time.Hour)
	report, err := outbox.Replay(ctx, producer.Replay{
		Selection: producer.Selection{Topic: "order.placed", From: from, To: from.Add(time.Hour)},
		Progress:  func(r producer.ReplayReport) { fmt.Printf("%d so far\n", r.Replayed) },
	})
	if errors.Is(err, producer.ErrBeyondHorizon) {
		fmt.Println("consumers may have forgotten some of them:", err)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d events are sent again\n", report.Replayed)
	// Output:
	// 0 so far
	// 0 events are sent again
}
