package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
)

// A change and its event in one transaction of an SQLite database.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()

	db, err := sqlite.Open(filepath.Join(dir, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY)`); err != nil {
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

	place := func(id string) ([]producer.Written, error) {
		var written []producer.Written
		err := outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
			_, err := w.DB().ExecContext(ctx, `INSERT INTO orders (id) VALUES (?) ON CONFLICT DO NOTHING`, id)
			if err != nil {
				return err
			}
			written, err = w.WriteNow(ctx, producer.Event{Topic: "order.placed", Key: id, Source: "order/" + id, Version: 1})
			return err
		})
		return written, err
	}
	for range 2 { // the second time it is known
		written, err := place("42")
		fmt.Println(written[0].ID, written[0].Known, err)
	}
	stats, err := outbox.Stats(ctx)
	fmt.Println(stats.Pending, "pending", err)
	// Output:
	// 709a67dd-13b2-598f-9924-cf13e5459e89 false <nil>
	// 709a67dd-13b2-598f-9924-cf13e5459e89 true <nil>
	// 1 pending <nil>
}
