package consumer_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/postgres"
)

// migrated returns the store of a database of this test's own, whose pool configure may change.
func migrated(tb testing.TB, configure func(*pgxpool.Config)) *postgres.Store {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(testenv.Postgres(tb))
	if err != nil {
		tb.Fatal(err)
	}
	if configure != nil {
		configure(cfg)
	}
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	if _, err := postgres.Migrate(tb.Context(), pool, postgres.Config{}); err != nil {
		tb.Fatal(err)
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

// handle returns a handler under the name "reserve" of a new inbox on db.
func handle[TX any](t *testing.T, db *database[TX], cfg consumer.Config, hc consumer.HandlerConfig, fn consumer.HandlerFunc[TX]) (*consumer.Inbox[TX], *consumer.Handler[TX]) {
	t.Helper()
	cfg.Service = "stock"
	inbox, err := consumer.New(db.Store, cfg, consumer.WithOutbox(db.Outbox))
	if err != nil {
		t.Fatal(err)
	}
	hc.Topic = "orders"
	h, err := inbox.Handle("reserve", fn, hc)
	if err != nil {
		t.Fatal(err)
	}
	return inbox, h
}

// rowID names the column that tells in which order rows of one transaction each came to be.
func rowID[TX any](db *database[TX]) string {
	if db.Snapshots {
		return "ctid"
	}
	return "rowid"
}
