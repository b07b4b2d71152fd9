package audit_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/store/sqlite"
)

// The outbox and the inbox of one SQLite file are compared. PostgreSQL has postgres.NewAuditor
// instead, and each side may consist of several databases.
func Example() {
	path := exampleDatabase()
	defer func() { _ = os.RemoveAll(filepath.Dir(path)) }()
	db, err := sqlite.OpenReadOnly(path)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	shop, err := sqlite.NewAuditor(db, sqlite.AuditorConfig{})
	if err != nil {
		log.Fatal(err)
	}

	check, err := audit.New(audit.Config{
		Outboxes: []audit.NamedOutbox{{Name: "shop", Outbox: shop}},
		Inboxes:  []audit.NamedInbox{{Name: "shop", Inbox: shop}},
		Expect:   []audit.Expectation{{Consumer: "warehouse/ship", Topics: []string{"order.placed"}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	report, err := check.Run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range report.Examples {
		fmt.Println(f.Kind, f.DispatchID, f.Topic)
	}
	fmt.Println("clean:", report.Clean)
	// Output:
	// not_applied 01020304-0506-0708-090a-0b0c0d0e0f10 order.placed
	// clean: false
}

// exampleDatabase makes a database whose event left the outbox long ago and was never applied.
func exampleDatabase() string {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "boxpair-audit-*")
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(dir, "shop.db")
	db, err := sqlite.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		log.Fatal(err)
	}
	for _, statement := range []string{
		`INSERT INTO boxpair_outbox_events (dispatch_id, digest, shard, topic, payload, occurred_at, created_at)
			VALUES (x'0102030405060708090a0b0c0d0e0f10', x'000102030405060708090a0b0c0d0e0f', 0, 'order.placed', '42', 2, 2)`,
		`DELETE FROM boxpair_outbox_queue`,
		`INSERT INTO boxpair_inbox_consumers (name, window_us, registered_at, passed_at) VALUES ('warehouse/ship', 1, 1, 1)`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			log.Fatal(err)
		}
	}
	return path
}
