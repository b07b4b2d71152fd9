package doctor_test

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/internal/testenv/service"
	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/store/postgres"
)

// rig is a database with an outbox and an inbox that are looked after.
type rig struct {
	*testing.T
	pool  *pgxpool.Pool // of a superuser
	store *postgres.Store
	cfg   doctor.Config
}

// newRig returns a rig on a database of the test's own.
func newRig(t *testing.T) *rig {
	t.Helper()
	return rigAt(t, testenv.Postgres(t))
}

// newServer returns a rig on a server of the test's own, with the settings of a durable one and others.
func newServer(t *testing.T, settings ...string) (*rig, *service.Postgres) {
	t.Helper()
	server, err := service.StartPostgresWith(t.Context(), service.PostgresConfig{Settings: append([]string{"fsync=on", "full_page_writes=on"}, settings...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return rigAt(t, server.URL()), server
}

func rigAt(t *testing.T, address string) *rig {
	t.Helper()
	r := &rig{T: t, pool: pool(t, address)}
	if _, err := postgres.Migrate(t.Context(), r.pool, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.store, err = postgres.New(r.pool, postgres.Config{}); err != nil {
		t.Fatal(err)
	}
	d := doctor.Database{Name: "shop", Pool: r.pool}
	r.cfg = doctor.Config{Outboxes: []doctor.Database{d}, Inboxes: []doctor.Database{d}}
	return r
}

// pool opens a small pool.
func pool(t *testing.T, address string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 4
	p, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (r *rig) exec(statement string, args ...any) {
	r.Helper()
	if _, err := r.pool.Exec(r.Context(), statement, args...); err != nil {
		r.Fatal(err)
	}
}

// attended makes a relay own all shards, and registers a consumer.
func (r *rig) attended() {
	r.Helper()
	if _, err := r.store.Heartbeat(r.Context(), "relay-1", time.Hour); err != nil {
		r.Fatal(err)
	}
	if grants, err := r.store.Acquire(r.Context(), "relay-1", time.Hour, 64); err != nil || len(grants) != 64 {
		r.Fatalf("%d shards: %v", len(grants), err)
	}
	if _, err := r.store.Register(r.Context(), "stock/reserve", 14*24*time.Hour); err != nil {
		r.Fatal(err)
	}
}

// event writes an event into the log, and nowhere else.
func (r *rig) event() (id int64) {
	r.Helper()
	err := r.pool.QueryRow(r.Context(), `INSERT INTO boxpair.outbox_events (dispatch_id, digest, shard, topic, producer, payload)
		VALUES (gen_random_uuid(), decode(repeat('00', 16), 'hex'), 0, 'order.placed', 'orders', 'secret payload') RETURNING id`).Scan(&id)
	if err != nil {
		r.Fatal(err)
	}
	return id
}

// examine runs the doctor.
func (r *rig) examine() []doctor.Finding {
	r.Helper()
	return examine(r.T, r.cfg)
}

func examine(t *testing.T, cfg doctor.Config) []doctor.Finding {
	t.Helper()
	found, err := doctor.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		text := f.String()
		if f.Subject == "" || f.Problem == "" || f.Remedy == "" || strings.ContainsAny(text, "\n\t\x1b") || strings.Contains(text, "secret") {
			t.Errorf("finding %q", text)
		}
		if !slices.Contains(doctor.Checks(), f.Check) {
			t.Errorf("finding %q of the unknown check %q", text, f.Check)
		}
	}
	return found
}

// want fails unless a check has found something of the severity that contains the texts.
func want(t *testing.T, found []doctor.Finding, check doctor.Check, severity doctor.Severity, texts ...string) {
	t.Helper()
	if !has(found, check, severity, texts...) {
		t.Errorf("no finding %s of %s with %q in:\n%s", severity, check, texts, lines(found))
	}
}

func has(found []doctor.Finding, check doctor.Check, severity doctor.Severity, texts ...string) bool {
	return slices.ContainsFunc(found, func(f doctor.Finding) bool {
		return f.Check == check && f.Severity == severity &&
			!slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(f.String(), text) })
	})
}

// healthy fails if the doctor finds anything about databases. RabbitMQ is not given.
func healthy(t *testing.T, cfg doctor.Config) {
	t.Helper()
	found := examine(t, cfg)
	want(t, found, doctor.Reach, doctor.NotChecked, "RabbitMQ", "rabbitmq-plugins enable rabbitmq_management")
	if len(found) != 1 {
		t.Errorf("healthy, and found:\n%s", lines(found))
	}
}

// none fails if one of the checks has found something.
func none(t *testing.T, found []doctor.Finding, checks ...doctor.Check) {
	t.Helper()
	for _, f := range found {
		if slices.Contains(checks, f.Check) {
			t.Errorf("%s: %s", f.Check, f)
		}
	}
}

func lines(found []doctor.Finding) string {
	var b strings.Builder
	for _, f := range found {
		b.WriteString(string(f.Check) + ": " + f.String() + "\n")
	}
	return b.String()
}

// await waits until the doctor has found something.
func await(t *testing.T, cfg doctor.Config, check doctor.Check, severity doctor.Severity, texts ...string) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		found := examine(t, cfg)
		if has(found, check, severity, texts...) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			want(t, found, check, severity, texts...)
			return
		}
	}
}

// as returns address for another user.
func as(t *testing.T, address, user, password string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// count returns how many findings are of a check.
func count(found []doctor.Finding, check doctor.Check) (n int) {
	for _, f := range found {
		if f.Check == check {
			n++
		}
	}
	return n
}
