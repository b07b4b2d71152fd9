package idempotent_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxpair/boxpair/middleware/idempotent"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/sqlite"
)

// A client without an answer sends its request again. The order is placed once.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sqlite.Open(filepath.Join(dir, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
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

	requests, err := idempotent.New(outbox, store, idempotent.Config{
		Scope: func(r *http.Request) string { return r.Header.Get("Customer") },
	})
	if err != nil {
		log.Fatal(err)
	}
	orders := requests.Handle(func(rw http.ResponseWriter, r *http.Request, w *producer.Writer[*sql.Tx]) error {
		item, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		// … and the order itself, through w.DB()
		_, err = w.Write(r.Context(), idempotent.Identify(r.Context(), producer.Event{Topic: "order.placed", Payload: item}))
		if err != nil {
			return err
		}
		rw.WriteHeader(http.StatusCreated)
		_, err = fmt.Fprintf(rw, "one %s ordered", item)
		return err
	})

	for range 2 {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader("lamp"))
		r.Header.Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
		r.Header.Set("Customer", "42")
		rec := httptest.NewRecorder()
		orders.ServeHTTP(rec, r)
		fmt.Printf("%d %s, replayed: %t\n", rec.Code, rec.Body, rec.Header().Get(idempotent.HeaderReplayed) != "")
	}
	stats, err := outbox.Stats(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("events in the outbox:", stats.Pending)
	// Output:
	// 201 one lamp ordered, replayed: false
	// 201 one lamp ordered, replayed: true
	// events in the outbox: 1
}
