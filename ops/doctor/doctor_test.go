package doctor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/amqp"
)

func TestWrongConfigurationIsRefusedByItsFields(t *testing.T) {
	t.Parallel()
	_, err := doctor.Run(t.Context(), doctor.Config{
		Outboxes:   []doctor.Database{{Schema: strings.Repeat("s", 64), Connections: -1}},
		Management: amqp.Management{URL: "amqp://guest:secret@host"},
		ClockSkew:  -1, TransactionAge: -1, EventAge: -1, MessageAge: -1, ConsumerSilence: -1, DeadRows: -1, SlotBytes: -1,
		Ignore: []doctor.Check{"cloc"},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"Outboxes[0]: Name", "Pool", "Connections", "schema", "Management: URL", "ClockSkew", "TransactionAge", "EventAge",
		"MessageAge", "ConsumerSilence", "DeadRows", "SlotBytes", `Ignore: there is no check "cloc"`} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%v names no %s", err, field)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("%v shows a password", err)
	}
	if _, err := doctor.Run(t.Context(), doctor.Config{}); err == nil || !strings.Contains(err.Error(), "nothing to check") {
		t.Errorf("without anything: %v", err)
	}
}

func TestServerThatDoesNotAnswerIsNotChecked(t *testing.T) {
	t.Parallel()
	silent := pool(t, "postgres://shop:secret@127.0.0.1:1/shop?connect_timeout=1")
	cfg := doctor.Config{
		Outboxes:   []doctor.Database{{Name: "orders", Pool: silent}},
		Management: amqp.Management{URL: "http://monitor:secret@127.0.0.1:1"},
	}
	found := examine(t, cfg)
	want(t, found, doctor.Reach, doctor.NotChecked, "orders")
	want(t, found, doctor.Reach, doctor.NotChecked, "RabbitMQ")
	if len(found) != 2 {
		t.Errorf("found:\n%s", lines(found))
	}
	cfg.Ignore = []doctor.Check{doctor.Reach}
	if found := examine(t, cfg); len(found) > 0 {
		t.Errorf("ignored, and found:\n%s", lines(found))
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, err := doctor.Run(ended, cfg); !errors.Is(err, cause) {
		t.Errorf("after the end of the context: %v", err)
	}
}

func TestDatabaseThatIsGivenTwiceIsCheckedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`ALTER TABLE boxpair.pauses SET UNLOGGED`)
	r.cfg.Outboxes = append(r.cfg.Outboxes, doctor.Database{Name: "again", Pool: pool(t, r.pool.Config().ConnString())})
	n := 0
	for _, f := range r.examine() {
		if f.Check == doctor.Unlogged || f.Check == doctor.Durability && strings.Contains(f.Problem, "fsync") {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d findings of a table and of a server, want 2", n)
	}
}

func TestTroubleInSQLiteIsFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	d := doctor.Database{Name: "shop", SQLite: db}
	cfg := doctor.Config{Outboxes: []doctor.Database{d}, Inboxes: []doctor.Database{d}}
	want(t, examine(t, cfg), doctor.Migrations, doctor.Stalls, "boxpair migrate")
	if _, err := sqlite.Migrate(t.Context(), db, sqlite.Config{}); err != nil {
		t.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Heartbeat(t.Context(), "relay-1", time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Acquire(t.Context(), "relay-1", time.Hour, 64); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Register(t.Context(), "stock/reserve", 9*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	reader, err := sqlite.OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	cfg.Outboxes[0].SQLite, cfg.Inboxes[0].SQLite = reader, reader
	healthy(t, cfg)
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO boxpair_outbox_events (dispatch_id, digest, shard, topic, key, payload, created_at, occurred_at, resend_seconds, producer)
		VALUES (randomblob(16), zeroblob(16), 0, 'order.placed', '', 'secret', 0, 0, 864000, 'orders')`)
	exec(`UPDATE boxpair_outbox_shards SET lease_until = 1 WHERE shard = 3`)
	exec(`INSERT INTO boxpair_inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, payload, state, attempts, next_attempt_at, parked_at, last_error)
		SELECT id, x'4b9d2a517c115d6e9d7e2f4c8f3b1a20', zeroblob(16), 'order.placed', 'order-7', 1, 1, 'secret', 'retrying', 19, 0, passed_at - 660000000, 'no article' FROM boxpair_inbox_consumers`)
	exec(`UPDATE boxpair_inbox_consumers SET passed_at = passed_at - 7200000000`)
	p := control.Pause{Kind: control.Downstream, Name: "analytics", Reason: "moves", By: "ann"}
	if err := p.Begin(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	found := examine(t, cfg)
	want(t, found, doctor.ExpiredLease, doctor.Stalls, "relay relay-1", "1 shards")
	want(t, found, doctor.Window, doctor.Loses, "consumer stock/reserve", "216h", "240h")
	want(t, found, doctor.IdleConsumer, doctor.Stalls, "consumer stock/reserve", "2h0m")
	want(t, found, doctor.Waiting, doctor.Stalls, "the message 4b9d2a51 of topic order.placed was tried 19 times in 11m", "s; its last error: no article; boxpair why 4b9d2a517c115d6e9d7e2f4c8f3b1a20 --inbox URL")
	want(t, found, doctor.Pauses, doctor.Stalls, "boxpair resume --outbox URL --downstream 'analytics'")
}

const document = "../../docs/doctor.md"

// TestEveryCheckIsDocumentedAndCaused compares the checks with the tables of docs/doctor.md, and with
// the tests.
func TestEveryCheckIsDocumentedAndCaused(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	var documented []doctor.Check
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| [^|]+ \\| [^|]+ \\| [^|]+ \\|$").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, doctor.Check(row[1]))
	}
	if !slices.Equal(documented, doctor.Checks()) {
		t.Errorf("%s has %v, want %v", document, documented, doctor.Checks())
	}
	names, err := os.ReadFile("checks.go")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(text)
	}
	for _, check := range doctor.Checks() {
		constant := regexp.MustCompile(`(?m)^\s+(\w+)\s+Check = "` + string(check) + `"`).FindSubmatch(names)
		if constant == nil {
			t.Errorf("checks.go has no constant for %s", check)
			continue
		}
		caused := regexp.MustCompile(`doctor\.` + string(constant[1]) + `, (doctor\.(Loses|Stalls|Advice)|["` + "`" + `])`)
		if check != doctor.Reach && !caused.MatchString(tests.String()) {
			t.Errorf("no test causes %s", check)
		}
	}
}

func TestCausesComeBeforeTheirSymptoms(t *testing.T) {
	t.Parallel()
	found := []doctor.Finding{
		{Check: doctor.Reach, Severity: doctor.NotChecked},
		{Check: doctor.Autovacuum, Severity: doctor.Stalls},
		{Check: doctor.Waiting, Severity: doctor.Stalls},
		{Check: doctor.DeadRows, Severity: doctor.Stalls},
		{Check: doctor.OldTransaction, Severity: doctor.Stalls},
		{Check: doctor.Routes, Severity: doctor.Stalls},
		{Check: doctor.Durability, Severity: doctor.Loses},
	}
	doctor.Sort(found)
	var got []doctor.Check
	for _, f := range found {
		got = append(got, f.Check)
	}
	want := []doctor.Check{doctor.Durability, doctor.OldTransaction, doctor.Routes, doctor.Waiting, doctor.DeadRows, doctor.Autovacuum, doctor.Reach}
	if !slices.Equal(got, want) {
		t.Errorf("order is %v, want %v", got, want)
	}
}
