package idempotent_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/middleware/idempotent"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// realStore is the part of a database's store that these tests need.
type realStore[TX any] interface {
	outbox.Store[TX]
	inbox.RequestStore[TX]
}

// database is a real database with a table of orders.
type database[TX any] struct {
	store realStore[TX]
	exec  func(ctx context.Context, tx TX, statement string, args ...any) error
	// placed counts the orders and the unsent events.
	placed func() (orders, events int, err error)
}

// opener returns a database for one test.
type opener[TX any] func(t *testing.T) *database[TX]

const (
	createOrders = `CREATE TABLE orders (item TEXT)`
	countPlaced  = `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM `
)

func newSQLite(t *testing.T) *database[*sql.Tx] {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "shop.db"))
	ok(t, err)
	t.Cleanup(func() { _ = db.Close() })
	_, err = sqlite.Migrate(t.Context(), db, sqlite.Config{})
	ok(t, err)
	_, err = db.Exec(createOrders)
	ok(t, err)
	store, err := sqlite.New(db, sqlite.Config{})
	ok(t, err)
	return &database[*sql.Tx]{
		store: store,
		exec: func(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
			_, err := tx.ExecContext(ctx, statement, args...)
			return err
		},
		placed: func() (orders, events int, err error) {
			err = db.QueryRow(countPlaced+`boxpair_outbox_queue)`).Scan(&orders, &events)
			return orders, events, err
		},
	}
}

func newPostgres(t *testing.T) *database[pgx.Tx] {
	t.Helper()
	return newPostgresBehind(t, func(address string) string { return address })
}

// newPostgresBehind returns a database that is reached at the address that behind returns.
func newPostgresBehind(t *testing.T, behind func(address string) string) *database[pgx.Tx] {
	t.Helper()
	address := testenv.Postgres(t)
	direct, err := pgxpool.New(t.Context(), address)
	ok(t, err)
	t.Cleanup(direct.Close)
	_, err = postgres.Migrate(t.Context(), direct, postgres.Config{})
	ok(t, err)
	_, err = direct.Exec(t.Context(), createOrders)
	ok(t, err)
	pool, err := pgxpool.New(t.Context(), behind(address))
	ok(t, err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Config{})
	ok(t, err)
	return &database[pgx.Tx]{
		store: store,
		exec: func(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
			_, err := tx.Exec(ctx, statement, args...)
			return err
		},
		placed: func() (orders, events int, err error) {
			err = direct.QueryRow(t.Context(), countPlaced+`boxpair.outbox_queue)`).Scan(&orders, &events)
			return orders, events, err
		},
	}
}

// onEach runs a test on both databases.
func onEach(t *testing.T, pg func(*testing.T, opener[pgx.Tx]), lite func(*testing.T, opener[*sql.Tx])) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		pg(t, newPostgres)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		lite(t, newSQLite)
	})
}

// shop is an idempotent handler that places an order.
type shop[TX any] struct {
	t       *testing.T
	db      *database[TX]
	store   *lossy[TX]
	outbox  *producer.Outbox[TX]
	handler http.Handler
	log     bytes.Buffer
	calls   atomic.Int64
}

// lossy is a store that reports commits as unknown, after or instead of committing.
type lossy[TX any] struct {
	realStore[TX]
	lose atomic.Int64 // number of commits to report as unknown; negative: they do not happen either
}

func (s *lossy[TX]) Transact(ctx context.Context, fn func(context.Context, TX) error) error {
	n := s.lose.Load()
	switch {
	case n > 0:
		s.lose.Store(n - 1)
		if err := s.realStore.Transact(ctx, fn); err != nil {
			return err
		}
		return outbox.ErrCommitUnknown
	case n < 0:
		s.lose.Store(n + 1)
		_ = s.realStore.Transact(ctx, func(ctx context.Context, tx TX) error {
			if err := fn(ctx, tx); err != nil {
				return err
			}
			return errors.New("not committed")
		})
		return outbox.ErrCommitUnknown
	}
	return s.realStore.Transact(ctx, fn)
}

type handler = idempotent.HandlerFunc[*sql.Tx]

// newShop returns a shop on SQLite.
func newShop(t *testing.T, cfg idempotent.Config, fn handler) *shop[*sql.Tx] {
	t.Helper()
	return newShopOn(t, newSQLite(t), cfg, fn)
}

// newShopOn returns a shop whose handler places an order and then calls fn.
func newShopOn[TX any](t *testing.T, db *database[TX], cfg idempotent.Config, fn idempotent.HandlerFunc[TX]) *shop[TX] {
	t.Helper()
	s := &shop[TX]{t: t, db: db, store: &lossy[TX]{realStore: db.store}}
	var err error
	s.outbox, err = producer.New(s.store, producer.Config{Name: "shop"})
	ok(t, err)
	cfg.Shared = cfg.Scope == nil
	cfg.Logger = slog.New(slog.NewTextHandler(&s.log, nil))
	requests, err := idempotent.New(s.outbox, s.store, cfg)
	ok(t, err)
	s.handler = requests.Handle(func(rw http.ResponseWriter, r *http.Request, w *producer.Writer[TX]) error {
		s.calls.Add(1)
		if err := s.place(r, w); err != nil {
			return err
		}
		if fn != nil {
			return fn(rw, r, w)
		}
		rw.Header().Set("Location", "/orders/1")
		rw.Header().Set("Set-Cookie", "secret")
		rw.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(rw, "placed")
		return err
	})
	return s
}

// place writes an order and its event.
func (s *shop[TX]) place(r *http.Request, w *producer.Writer[TX]) error {
	item, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if err := s.db.exec(r.Context(), w.DB(), `INSERT INTO orders VALUES ($1)`, string(item)); err != nil {
		return err
	}
	e := idempotent.Identify(r.Context(), producer.Event{Topic: "order.placed", Payload: item})
	_, err = w.Write(r.Context(), e)
	return err
}

// do sends a request and returns the answer.
func (s *shop[TX]) do(key, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, path, strings.NewReader(body))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	s.handler.ServeHTTP(rec, r)
	return rec
}

// want checks an answer, and the numbers of orders and events.
func (s *shop[TX]) want(resp *httptest.ResponseRecorder, status int, body string, placed int) {
	s.t.Helper()
	if got := resp.Body.String(); resp.Code != status || body != "" && got != body {
		s.t.Errorf("%d %q, want %d %q", resp.Code, got, status, body)
	}
	s.wantPlaced(placed)
}

func (s *shop[TX]) wantPlaced(placed int) {
	s.t.Helper()
	orders, events, err := s.db.placed()
	if err != nil || orders != placed || events != placed {
		s.t.Errorf("%d orders and %d events, want %d; %v", orders, events, placed, err)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
