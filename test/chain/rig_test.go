package chain

import (
	"context"
	"database/sql"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

// patience bounds the waits of a test, on a machine that is busy with many tests.
const patience = 30 * time.Second

// database is a database of a service, with an outbox, an inbox, aggregates that producers lock and
// count, and effects that are only ever added.
type database[TX any] struct {
	store interface {
		outbox.Store[TX]
		inbox.Store[TX]
	}
	exec func(ctx context.Context, tx TX, statement string, args ...any) error
	// next locks an aggregate and returns its next version.
	next func(ctx context.Context, tx TX, key string) (int, error)
	// list reads one column of text, number one number.
	list   func(query string, args ...any) []string
	number func(query string, args ...any) int
	schema string // with what separates it from a table's name
}

const (
	createAggregates = `CREATE TABLE aggregates (key TEXT PRIMARY KEY, n INTEGER NOT NULL)`
	createOrders     = `CREATE TABLE orders (key TEXT NOT NULL)`
	createEffects    = `CREATE TABLE effects (consumer TEXT NOT NULL, dispatch TEXT NOT NULL, key TEXT NOT NULL, content TEXT NOT NULL, `
	nextVersion      = `INSERT INTO aggregates VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = aggregates.n + 1 RETURNING n`
	insertEffect     = `INSERT INTO effects (consumer, dispatch, key, content) VALUES ($1, $2, $3, $4)`
)

// newPostgres returns a database of this test's own, and its URL.
func newPostgres(t *testing.T) (*database[pgx.Tx], string) {
	t.Helper()
	url := testenv.Postgres(t)
	setUpPostgres(t, url)
	return openPostgres(t, url), url
}

func setUpPostgres(t *testing.T, url string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	ok(t, err)
	defer pool.Close()
	_, err = postgres.Migrate(t.Context(), pool, postgres.Config{})
	ok(t, err)
	for _, statement := range []string{createAggregates, createOrders, createEffects + `seq bigint GENERATED ALWAYS AS IDENTITY)`} {
		_, err = pool.Exec(t.Context(), statement)
		ok(t, err)
	}
}

// newPool returns a pool of so many connections.
func newPool(t *testing.T, url string, conns int32) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	ok(t, err)
	cfg.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), cfg)
	ok(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func openPostgres(t *testing.T, url string) *database[pgx.Tx] {
	t.Helper()
	pool := newPool(t, url, 20)
	db, err := postgresOn(pool, postgres.Config{})
	ok(t, err)
	db.list = func(query string, args ...any) []string {
		t.Helper()
		rows, err := pool.Query(context.WithoutCancel(t.Context()), query, args...)
		ok(t, err)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		ok(t, err)
		return found
	}
	db.number = func(query string, args ...any) (n int) {
		t.Helper()
		ok(t, pool.QueryRow(context.WithoutCancel(t.Context()), query, args...).Scan(&n))
		return n
	}
	return db
}

// postgresOn is openPostgres without a test, for child processes.
func postgresOn(pool *pgxpool.Pool, cfg postgres.Config) (*database[pgx.Tx], error) {
	store, err := postgres.New(pool, cfg)
	return &database[pgx.Tx]{
		store: store, schema: "boxpair.",
		exec: func(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
			_, err := tx.Exec(ctx, statement, args...)
			return err
		},
		next: func(ctx context.Context, tx pgx.Tx, key string) (n int, err error) {
			err = tx.QueryRow(ctx, nextVersion, key).Scan(&n)
			return n, err
		},
	}, err
}

func newSQLite(t *testing.T) *database[*sql.Tx] {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "service.db"))
	ok(t, err)
	t.Cleanup(func() { _ = db.Close() })
	_, err = sqlite.Migrate(t.Context(), db, sqlite.Config{})
	ok(t, err)
	for _, statement := range []string{createAggregates, createOrders, createEffects + `seq INTEGER PRIMARY KEY AUTOINCREMENT)`} {
		_, err = db.Exec(statement)
		ok(t, err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	ok(t, err)
	d := &database[*sql.Tx]{
		store: store, schema: "boxpair_",
		next: func(ctx context.Context, tx *sql.Tx, key string) (n int, err error) {
			err = tx.QueryRowContext(ctx, nextVersion, key).Scan(&n)
			return n, err
		},
	}
	onSQL(t, d, db, func(statement string) string { return statement })
	return d
}

// onSQL has d run its statements on db, as in says that the server reads them.
func onSQL(t *testing.T, d *database[*sql.Tx], db *sql.DB, in func(statement string) string) {
	d.exec = func(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
		_, err := tx.ExecContext(ctx, in(statement), args...)
		return err
	}
	d.list = func(query string, args ...any) (found []string) {
		t.Helper()
		rows, err := db.QueryContext(context.WithoutCancel(t.Context()), in(query), args...)
		ok(t, err)
		defer rows.Close()
		for rows.Next() {
			var s string
			ok(t, rows.Scan(&s))
			found = append(found, s)
		}
		ok(t, rows.Err())
		return found
	}
	d.number = func(query string, args ...any) (n int) {
		t.Helper()
		ok(t, db.QueryRowContext(context.WithoutCancel(t.Context()), in(query), args...).Scan(&n))
		return n
	}
}

// outboxOf returns an outbox of the producer "shop".
func outboxOf[TX any](t *testing.T, db *database[TX]) *producer.Outbox[TX] {
	t.Helper()
	outbox, err := producer.New(db.store, producer.Config{Name: "shop"})
	ok(t, err)
	return outbox
}

// place locks the aggregate key, writes its next event and tells its number. Numbers
// of a key begin with 1 and are in the order of writing.
func (d *database[TX]) place(ctx context.Context, w *producer.Writer[TX], topic, key string) (int, error) {
	n, err := d.next(ctx, w.DB(), key)
	if err != nil {
		return 0, err
	}
	_, err = w.Write(ctx, numbered(topic, key, n))
	return n, err
}

// numbered is the nth event of key.
func numbered(topic, key string, n int) producer.Event {
	return producer.Event{Topic: topic, Key: key, Source: "aggregate/" + key, Version: int64(n), Payload: []byte(strconv.Itoa(n))}
}

// placeAll places n events of each key, one transaction each, keys taking turns.
func placeAll[TX any](t *testing.T, db *database[TX], outbox *producer.Outbox[TX], topic string, n int, keys ...string) {
	t.Helper()
	for range n {
		for _, key := range keys {
			ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[TX]) error {
				_, err := db.place(ctx, w, topic, key)
				return err
			}))
		}
	}
}

// effect adds the effect of the message of w.
func (d *database[TX]) effect(ctx context.Context, w *consumer.Work[TX], name string) error {
	e := w.Event()
	return d.exec(ctx, w.DB(), insertEffect, name, e.ID.String(), e.Key, string(e.Payload))
}

// wantEffects waits until consumer has had the effects of n dispatches, and checks that
// each had one.
func (d *database[TX]) wantEffects(t *testing.T, consumer string, n int) {
	t.Helper()
	eventually(t, "effects of all dispatches", func() bool {
		return d.number(`SELECT count(DISTINCT dispatch) FROM effects WHERE consumer = $1`, consumer) >= n
	})
	if all := d.number(`SELECT count(*) FROM effects WHERE consumer = $1`, consumer); all != n {
		t.Errorf("%s: %d effects of %d dispatches", consumer, all, n)
	}
}

// wantOrder checks that consumer has applied events 1 to n of key, in this order.
func (d *database[TX]) wantOrder(t *testing.T, consumer, key string, n int) {
	t.Helper()
	found := d.list(`SELECT content FROM effects WHERE consumer = $1 AND key = $2 ORDER BY seq`, consumer, key)
	wantAscending(t, consumer+", key "+key, found, n)
}

func wantAscending(t *testing.T, what string, found []string, n int) {
	t.Helper()
	if len(found) != n {
		t.Errorf("%s: %d events, want %d: %v", what, len(found), n, found)
		return
	}
	for i, s := range found {
		if s != strconv.Itoa(i+1) {
			t.Errorf("%s: out of order: %v", what, found)
			return
		}
	}
}

// wantDrained waits until the outbox holds no unsent event.
func (d *database[TX]) wantDrained(t *testing.T) {
	t.Helper()
	eventually(t, "an empty queue", func() bool {
		return d.number(`SELECT count(*) FROM `+d.schema+`outbox_queue`) == 0 &&
			d.number(`SELECT count(*) FROM `+d.schema+`outbox_parked WHERE state IN ('retrying', 'following')`) == 0
	})
}

// startRelay runs a relay until the end of the test, or until the returned function
// is called.
func startRelay[TX any](t *testing.T, outbox *producer.Outbox[TX], publisher message.Publisher, cfg relay.Config) (*relay.Relay, func()) {
	t.Helper()
	relay, err := relay.New(outbox, publisher, cfg)
	ok(t, err)
	return relay, start(t, relay.Run)
}

// start runs part until the end of the test, or until the returned function is called.
func start(t *testing.T, part func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := part(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// service is one process of a consumer.
type service[TX any] struct {
	inbox   *consumer.Inbox[TX]
	handler *consumer.Handler[TX]
	stop    func() // the router
}

// startService runs one handler on topic behind a Watermill router.
func startService[TX any](t *testing.T, db *database[TX], outbox *producer.Outbox[TX], sub message.Subscriber, topic string,
	cfg consumer.Config, hc consumer.HandlerConfig, fn consumer.HandlerFunc[TX],
) *service[TX] {
	t.Helper()
	var options []consumer.Option[TX]
	if outbox != nil {
		options = append(options, consumer.WithOutbox(outbox))
	}
	inbox, err := consumer.New(db.store, cfg, options...)
	ok(t, err)
	h, err := inbox.Handle("apply", fn, hc)
	ok(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	ok(t, err)
	router.AddConsumerHandler("apply", topic, sub, h.Consume)
	stop := start(t, router.Run)
	select {
	case <-router.Running():
	case <-time.After(patience):
		t.Fatal("the router does not start")
	}
	start(t, inbox.Run)
	return &service[TX]{inbox: inbox, handler: h, stop: stop}
}

// apply runs a consumer that adds the effect of every message under the name of
// its service.
func apply[TX any](t *testing.T, db *database[TX], sub message.Subscriber, topic, name string, hc consumer.HandlerConfig) *service[TX] {
	t.Helper()
	return startService(t, db, nil, sub, topic, consumer.Config{Service: name}, hc,
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			return db.effect(ctx, w, name)
		})
}

// sender passes messages on, except where send says otherwise.
type sender struct {
	transport.Sender
	send func(ctx context.Context, topic string, msg *message.Message, done func(transport.Result))
}

func (s *sender) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	s.send(ctx, topic, msg, done)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// pause lets real processes and servers go on, or one of them stand still, for d.
func pause(d time.Duration) { <-time.After(d) }

// order adds an order and writes its event.
func (d *database[TX]) order(ctx context.Context, w *producer.Writer[TX], topic, key string) error {
	if err := d.exec(ctx, w.DB(), `INSERT INTO orders VALUES ($1)`, key); err != nil {
		return err
	}
	_, err := w.Write(ctx, numbered(topic, key, 1))
	return err
}
