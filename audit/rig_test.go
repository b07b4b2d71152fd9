package audit_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	topic = "order.placed"
	name  = "inventory/reserve"
)

// database is one database with an outbox and an inbox.
type database struct {
	t       testing.TB
	names   migrations.Names
	words   map[string]string // SQL for {hour} and {now} in a statement
	exec    func(statement string, args ...any) error
	number  func(query string, args ...any) (int, error)
	id      func(uuid.UUID) any
	auditor interface {
		audit.Outbox
		audit.Inbox
	}
	// write commits events. relay publishes all pending events to publisher.
	write func(events ...producer.Event) []uuid.UUID
	relay func(ctx context.Context, publisher message.Publisher) error
	// consume registers the consumer, and returns a function that runs its handler.
	consume func(cfg consumer.HandlerConfig, handle func() error) func(*message.Message) error
}

var placeholder = regexp.MustCompile(`\{([a-z_]+)\}`)

func (d *database) text(statement string) string {
	return placeholder.ReplaceAllStringFunc(statement, func(s string) string {
		word := s[1 : len(s)-1]
		if text, ok := d.words[word]; ok {
			return text
		}
		return d.names.Table(word)
	})
}

// run changes the database directly, past the library.
func (d *database) run(statement string, args ...any) {
	d.t.Helper()
	ok(d.t, d.exec(d.text(statement), args...))
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// databases has a constructor for each kind of database.
var databases = map[string]func(testing.TB) *database{
	"postgres": func(t testing.TB) *database { return newPostgres(t, testenv.Postgres(t)) },
	"sqlite":   newSQLite,
}

func newPostgres(t testing.TB, url string) *database {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	ok(t, err)
	t.Cleanup(pool.Close)
	cfg := postgres.Config{Schema: "audit it", Prefix: "p_"}
	_, err = postgres.Migrate(t.Context(), pool, cfg)
	ok(t, err)
	store, err := postgres.New(pool, cfg)
	ok(t, err)
	auditor, err := postgres.NewAuditor(pool, postgres.AuditorConfig{Schema: cfg.Schema, Prefix: cfg.Prefix})
	ok(t, err)
	names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
	ok(t, err)
	d := &database{
		t: t, names: names, auditor: auditor,
		words: map[string]string{"hour": "interval '1 hour'", "now": "clock_timestamp()", "ids": "'{5}'"},
		id:    func(id uuid.UUID) any { return [16]byte(id) },
		exec: func(statement string, args ...any) error {
			_, err := pool.Exec(t.Context(), statement, args...)
			return err
		},
		number: func(query string, args ...any) (n int, err error) {
			err = pool.QueryRow(t.Context(), query, args...).Scan(&n)
			return n, err
		},
	}
	connect[pgx.Tx](d, store)
	return d
}

func newSQLite(t testing.TB) *database {
	t.Helper()
	path := filepath.Join(t.TempDir(), "service.db")
	db, err := sqlite.Open(path)
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	_, err = sqlite.Migrate(t.Context(), db, sqlite.Config{})
	ok(t, err)
	store, err := sqlite.New(db, sqlite.Config{})
	ok(t, err)
	reading, err := sqlite.OpenReadOnly(path)
	ok(t, err)
	t.Cleanup(func() { ok(t, reading.Close()) })
	auditor, err := sqlite.NewAuditor(reading, sqlite.AuditorConfig{})
	ok(t, err)
	names, err := migrations.SQLiteNames("")
	ok(t, err)
	d := &database{
		t: t, names: names, auditor: auditor,
		words: map[string]string{"hour": "3600000000", "now": "CAST(unixepoch('subsec') * 1000000 AS INTEGER)", "ids": "'[5]'"},
		id:    func(id uuid.UUID) any { return id[:] },
		exec: func(statement string, args ...any) error {
			_, err := db.ExecContext(t.Context(), statement, args...)
			return err
		},
		number: func(query string, args ...any) (n int, err error) {
			err = db.QueryRowContext(t.Context(), query, args...).Scan(&n)
			return n, err
		},
	}
	connect[*sql.Tx](d, store)
	return d
}

// connect makes the producer and the consumer of d.
func connect[TX any](d *database, store interface {
	outbox.Store[TX]
	inbox.Store[TX]
}) {
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	ok(d.t, err)
	d.write = func(events ...producer.Event) (ids []uuid.UUID) {
		d.t.Helper()
		ok(d.t, outbox.Transact(d.t.Context(), func(ctx context.Context, w *producer.Writer[TX]) error {
			var err error
			ids, err = w.Write(ctx, events...)
			return err
		}))
		return ids
	}
	d.relay = func(ctx context.Context, publisher message.Publisher) error {
		relay, err := relay.New(outbox, publisher, relay.Config{})
		if err != nil {
			return err
		}
		_, err = relay.RunOnce(ctx)
		return err
	}
	d.consume = func(cfg consumer.HandlerConfig, handle func() error) func(*message.Message) error {
		d.t.Helper()
		inbox, err := consumer.New(store, consumer.Config{Service: "inventory"})
		ok(d.t, err)
		handler, err := inbox.Handle("reserve", func(context.Context, *consumer.Work[TX], *message.Message) error {
			return handle()
		}, cfg)
		ok(d.t, err)
		return handler.Consume
	}
}

// line is a publisher that hands every message to a handler and returns the handler's error.
type line func(*message.Message) error

func (l line) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := l(m); err != nil {
			return err
		}
	}
	return nil
}

func (l line) Close() error { return nil }

// pairRig is a producer's and a consumer's database. Its events were delivered and applied an hour
// ago.
type pairRig struct {
	testing.TB
	out, in *database
	ids     []uuid.UUID
}

const delivered = 12

// each runs a test on a pair of each kind of database.
func each(t *testing.T, test func(t *testing.T, p *pairRig)) {
	t.Parallel()
	for kind, open := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, newPair(t, open))
		})
	}
}

func newPair(t testing.TB, open func(testing.TB) *database) *pairRig {
	t.Helper()
	p := &pairRig{TB: t, out: open(t), in: open(t)}
	for i := range delivered {
		p.ids = append(p.ids, p.out.write(event(i))...)
	}
	p.deliver()
	p.age()
	return p
}

func event(i int) producer.Event {
	return producer.Event{Topic: topic, Key: "k" + strconv.Itoa(i%3), Source: "order/" + strconv.Itoa(i), Version: 1, Payload: []byte(fmt.Sprint("payload ", i))}
}

// deliver publishes all pending events to the consumer.
func (p *pairRig) deliver() {
	p.Helper()
	handler := p.in.consume(consumer.HandlerConfig{}, func() error { return nil })
	for {
		ok(p, p.out.relay(p.Context(), line(handler)))
		n, err := p.out.number(p.out.text(`SELECT count(*) FROM {outbox_queue}`))
		ok(p, err)
		if n == 0 {
			return
		}
	}
}

// age makes all rows an hour older.
func (p *pairRig) age() {
	p.Helper()
	p.out.run(`UPDATE {outbox_events} SET created_at = created_at - {hour}`)
	p.out.run(`UPDATE {outbox_receipts} SET delivered_at = delivered_at - {hour}`)
	p.in.run(`UPDATE {inbox} SET stamp = stamp - {hour}, applied_at = applied_at - {hour}`)
	p.in.run(`UPDATE {inbox_consumers} SET registered_at = registered_at - {hour} - {hour}`)
}

func (p *pairRig) config() audit.Config {
	return audit.Config{
		Outboxes: []audit.NamedOutbox{{Name: "orders", Outbox: p.out.auditor}},
		Inboxes:  []audit.NamedInbox{{Name: "stock", Inbox: p.in.auditor}},
		Expect:   []audit.Expectation{{Consumer: name, Topics: []string{"order.*"}}},
	}
}

func (p *pairRig) audit(change func(*audit.Config)) *audit.Report {
	p.Helper()
	cfg := p.config()
	cfg.PageSize = 5 // several pages
	if change != nil {
		change(&cfg)
	}
	a, err := audit.New(cfg)
	ok(p, err)
	report, err := a.Run(p.Context())
	ok(p, err)
	return report
}

// want checks that the findings are exactly the wanted ones.
func (p *pairRig) want(report *audit.Report, want map[audit.Kind]int) {
	p.Helper()
	for kind, n := range report.Findings {
		if n != want[kind] {
			p.Errorf("%s: %d findings, want %d: %+v", kind, n, want[kind], report.Examples)
		}
	}
	if report.Clean != (len(want) == 0) {
		p.Errorf("clean is %v with %v", report.Clean, report.Findings)
	}
}

// wantOne checks that there is a single finding, and returns it.
func (p *pairRig) wantOne(report *audit.Report, kind audit.Kind) audit.Finding {
	p.Helper()
	p.want(report, map[audit.Kind]int{kind: 1})
	if len(report.Examples) != 1 || report.Examples[0].Kind != kind {
		p.Fatalf("examples are %+v", report.Examples)
	}
	return report.Examples[0]
}

// anHourAgo checks that a time is an hour ago.
func anHourAgo(t testing.TB, what string, at time.Time) {
	t.Helper()
	if age := time.Since(at); age < 59*time.Minute || age > 90*time.Minute {
		t.Errorf("%s is %v, want an hour ago", what, at)
	}
}
