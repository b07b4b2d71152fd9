package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// call is outbox_write with arguments as they stand in SQL.
func (r *rig) call(arguments string) string {
	return "SELECT dispatch_id::text, known FROM " + r.names.Table("outbox_write") + "(" + arguments + ")"
}

// writeSQL writes with outbox_write in a transaction.
func (r *rig) writeSQL(q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, arguments string,
) (id uuid.UUID, known bool, err error) {
	var text string
	err = q.QueryRow(r.ctx(), r.call(arguments)).Scan(&text, &known)
	if err == nil {
		id = uuid.MustParse(text)
	}
	return id, known, err
}

func (r *rig) outbox(name string) *producer.Outbox[pgx.Tx] {
	r.Helper()
	outbox, err := producer.New(r.Store, producer.Config{Name: name})
	r.ok(err)
	return outbox
}

// literal returns s as a string in SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func literals(e *producer.Event) string {
	headers, _ := json.Marshal(e.Headers)
	if e.Headers == nil {
		headers = []byte("{}")
	}
	args := fmt.Sprintf(`producer => 'orders', topic => %s, key => %s, type => %s, source => %s, version => %d, idempotency_key => %s,
		schema_version => %d, content_type => %s, headers => %s, payload => '\x%x', correlation_id => %s, traceparent => %s, tracestate => %s`,
		literal(e.Topic), literal(e.Key), literal(e.Type), literal(e.Source), e.Version, literal(e.IdempotencyKey), e.SchemaVersion,
		literal(e.ContentType), literal(string(headers)), e.Payload, literal(e.CorrelationID), literal(e.TraceParent), literal(e.TraceState))
	if !e.OccurredAt.IsZero() {
		args += ", occurred_at => " + literal(e.OccurredAt.Format(time.RFC3339Nano))
	}
	if !e.DeliverAt.IsZero() {
		args += ", deliver_at => " + literal(e.DeliverAt.Format(time.RFC3339Nano))
	}
	return args
}

// eventsOfBothWriters are written once in Go and once in SQL.
func eventsOfBothWriters() map[string]producer.Event {
	at := time.Date(2026, 11, 22, 5, 4, 3, 123456000, time.UTC)
	return map[string]producer.Event{
		"plain":      {Topic: "t", Source: "s", Version: 1, Payload: []byte("{}"), OccurredAt: at},
		"no payload": {Topic: "t", Source: "s", Version: 5, Payload: []byte{}, OccurredAt: at},
		"everything": {
			Topic: "order.placed", Key: "ключ 'a' \"b\" \\", Type: "Typ €", Source: "order/42", Version: 9007199254740993,
			SchemaVersion: 7, ContentType: "application/json", Payload: []byte("\x00\xff\\x00 payload"), OccurredAt: at,
			CorrelationID: "c", TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", TraceState: "a=b",
			Headers: map[string]string{"b": "2", "a": "1", "Z": "", "é": "<&>\u2028\u2029\b\f\n\r\t\x01\x7f\"\\/", "<": "'", "aa": "3"},
		},
		"idempotency key":  {Topic: "t", Source: "s", IdempotencyKey: "key 1", Payload: []byte("x"), OccurredAt: at},
		"long":             {Topic: strings.Repeat("t", 255), Key: strings.Repeat("k", 255), Source: strings.Repeat("é", 127), Version: 1, Payload: make([]byte, 100_000), OccurredAt: at},
		"deferred":         {Topic: "t", Key: "k", Source: "s", Version: 2, Payload: []byte("{}"), OccurredAt: at, DeliverAt: at.AddDate(100, 0, 0)},
		"deferred, no key": {Topic: "t", Source: "s", Version: 3, Payload: []byte("{}"), OccurredAt: at, DeliverAt: at.AddDate(100, 0, 0)},
		"time is over":     {Topic: "t", Key: "k", Source: "s", Version: 4, Payload: []byte("{}"), OccurredAt: at, DeliverAt: at.AddDate(-1, 0, 0)},
	}
}

func TestEventWrittenInSQLIsTheOneThatGoWrites(t *testing.T) {
	t.Parallel()
	inGo, inSQL := newRig(t), newRig(t)
	outbox := inGo.outbox("orders")
	const row = `SELECT to_jsonb(e) - 'created_at' - 'id' || jsonb_build_object('headers', e.headers::text) FROM %s e WHERE dispatch_id = $1`
	for name, e := range eventsOfBothWriters() {
		t.Run(name, func(t *testing.T) {
			var want producer.Written
			err := outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				written, err := w.WriteNow(ctx, e)
				if err == nil {
					want = written[0]
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			id, known, err := inSQL.writeSQL(inSQL.pool, literals(&e))
			if err != nil || known || id != want.ID {
				t.Fatalf("SQL wrote %v, known %t, %v; Go wrote %v", id, known, err, want.ID)
			}
			a := value[string](inGo, fmt.Sprintf(row, inGo.names.Table("outbox_events")), id.String())
			b := value[string](inSQL, fmt.Sprintf(row, inSQL.names.Table("outbox_events")), id.String())
			if a != b {
				t.Errorf("rows differ:\n%s\n%s", a, b)
			}
			if _, known, err := inGo.writeSQL(inGo.pool, literals(&e)); err != nil || !known {
				t.Errorf("SQL finds Go's event known %t, %v", known, err)
			}
		})
	}
	const deferred = 2
	if n := len(inSQL.queue()); n != len(eventsOfBothWriters())-deferred {
		t.Errorf("%d events are queued", n)
	}
	const waiting = `SELECT coalesce(jsonb_agg(to_jsonb(d) - 'id' || jsonb_build_object('event', e.dispatch_id) ORDER BY e.dispatch_id), '[]') FROM %s d JOIN %s e ON e.id = d.id`
	a := value[string](inGo, fmt.Sprintf(waiting, inGo.names.Table("outbox_deferred"), inGo.names.Table("outbox_events")))
	b := value[string](inSQL, fmt.Sprintf(waiting, inSQL.names.Table("outbox_deferred"), inSQL.names.Table("outbox_events")))
	if a != b || strings.Count(a, `"event"`) != deferred {
		t.Errorf("what waits differs:\n%s\n%s", a, b)
	}
	goEvents, sqlEvents := inGo.queue(), inSQL.queue()
	shards := make(map[uuid.UUID]int)
	for _, q := range goEvents {
		shards[q.ID] = q.Shard
	}
	for _, q := range sqlEvents {
		if shard, ok := shards[q.ID]; !ok || shard != q.Shard {
			t.Errorf("event is in shard %d, Go's in %d", q.Shard, shard)
		}
	}
}

func TestGoKnowsTheEventThatSQLHasWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := producer.Event{Topic: "t", Key: "k", Source: "s", Version: 3, Payload: []byte("secret")}
	id, _, err := r.writeSQL(r.pool, literals(&e))
	r.ok(err)
	write := func(e producer.Event) (written []producer.Written, err error) {
		err = r.outbox("orders").Transact(r.ctx(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			written, err = w.WriteNow(ctx, e)
			return err
		})
		return written, err
	}
	written, err := write(e)
	if err != nil || !written[0].Known || written[0].ID != id {
		t.Errorf("Go wrote %v, %v", written, err)
	}
	e.Payload = []byte("other")
	if _, err := write(e); !errors.Is(err, outbox.ErrConflict) {
		t.Errorf("other content gives %v", err)
	}
	if q := r.queue(); len(q) != 1 || string(q[0].Payload) != "secret" {
		t.Errorf("queue holds %v", q)
	}
}

func TestSQLWriterRefusesOtherContentAndShowsNone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := producer.Event{Topic: "t", Key: "secret key", Source: "s", Version: 3, Payload: []byte("secret")}
	_, _, err := r.writeSQL(r.pool, literals(&e))
	r.ok(err)
	if _, known, err := r.writeSQL(r.pool, literals(&e)); err != nil || !known {
		t.Errorf("equal event is known %t, %v", known, err)
	}
	e.Headers = map[string]string{"a": "1"}
	_, _, err = r.writeSQL(r.pool, literals(&e))
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pgErr.Code != "23505" || !strings.Contains(pgErr.Message, "other content") ||
		strings.Contains(pgErr.Message+pgErr.Detail+pgErr.Where, "secret") {
		t.Errorf("error is %v", err)
	}
}

func TestSQLWriterWaitsForAWriterOfTheSameEvent(t *testing.T) {
	t.Parallel()
	e := producer.Event{Topic: "t", Source: "s", Version: 3, Payload: []byte("1")}
	other := e
	other.Payload = []byte("2")
	for name, c := range map[string]struct {
		second producer.Event
		fails  bool
	}{"equal": {e, false}, "other content": {other, true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			tx := r.begin()
			_, _, err := r.writeSQL(tx, literals(&e))
			r.ok(err)
			var known bool
			second := r.async(func() (err error) {
				_, known, err = r.writeSQL(r.pool, literals(&c.second))
				return err
			})
			r.waitsForLock(1)
			r.ok(tx.Commit(r.ctx()))
			if err := r.result(second); (err != nil) != c.fails || !c.fails && !known {
				t.Errorf("second writer: known %t, %v", known, err)
			}
		})
	}
}

func TestSQLWriterCountsTheEventsOfASource(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	of := func(tx pgx.Tx, arguments string) uuid.UUID {
		t.Helper()
		id, known, err := r.writeSQL(tx, "producer => 'orders', topic => 't', payload => '', "+arguments)
		if err != nil || known {
			t.Fatalf("%s: known %t, %v", arguments, known, err)
		}
		return id
	}
	expect := func(what string, got, want uuid.UUID) {
		t.Helper()
		if got != want {
			t.Errorf("%s has another index", what)
		}
	}
	tx := r.begin()
	expect("first", of(tx, "source => 's', version => 1"), idgen.Of("orders", "s", 1, 0))
	expect("second", of(tx, "source => 's', version => 1"), idgen.Of("orders", "s", 1, 1))
	expect("other version", of(tx, "source => 's', version => 2"), idgen.Of("orders", "s", 2, 0))
	expect("other source", of(tx, "source => 'r', version => 1"), idgen.Of("orders", "r", 1, 0))
	expect("key", of(tx, "source => 's', idempotency_key => '1'"), idgen.OfKey("orders", "s", "1", 0))
	expect("second of the key", of(tx, "source => 's', idempotency_key => '1'"), idgen.OfKey("orders", "s", "1", 1))
	expect("explicit", of(tx, "source => 's', version => 1, index => 7"), idgen.Of("orders", "s", 1, 7))
	sp, err := tx.Begin(r.ctx())
	r.ok(err)
	expect("in a savepoint", of(sp, "source => 's', version => 1"), idgen.Of("orders", "s", 1, 2))
	r.ok(sp.Rollback(r.ctx()))
	expect("after it was rolled back", of(tx, "source => 's', version => 1"), idgen.Of("orders", "s", 1, 2))
	for i := range 300 { // more than there are variables
		expect("one of many", of(tx, fmt.Sprintf("source => 'many %d', version => 1", i)), idgen.Of("orders", fmt.Sprintf("many %d", i), 1, 0))
	}
	r.ok(tx.Commit(r.ctx()))
	known := r.begin()
	id, was, err := r.writeSQL(known, "producer => 'orders', topic => 't', payload => '', source => 's', version => 1")
	if err != nil || !was || id != idgen.Of("orders", "s", 1, 0) {
		t.Errorf("the next transaction writes %v, known %t, %v: it counts anew", id, was, err)
	}
}

func TestSQLReproducesTheVectors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	data, err := os.ReadFile("../../idgen/testdata/vectors.json")
	r.ok(err)
	var file struct {
		IDs []struct {
			Case, Kind string
			Text       bool
			Parts      []string
			ID         uuid.UUID
		}
	}
	r.ok(json.Unmarshal(data, &file))
	n := 0
	for _, v := range file.IDs {
		if !v.Text {
			continue
		}
		n++
		id := value[string](r, "SELECT "+r.names.Table("outbox_dispatch_id")+"(VARIADIC $1)::text", append([]string{v.Kind}, v.Parts...))
		if id != v.ID.String() {
			t.Errorf("%s: %s, want %v", v.Case, id, v.ID)
		}
	}
	if n < 20 {
		t.Errorf("only %d vectors are text", n)
	}
}

func TestSQLWriterChecksWhatItIsGiven(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for want, arguments := range map[string]string{
		"topic: is required":                         `topic => ''`,
		"producer: is required":                      `producer => ''`,
		"source: is null":                            `source => NULL`,
		"key: has 256 bytes, more than 255":          `key => repeat('é', 128)`,
		"tracestate: has 513 bytes":                  `tracestate => repeat('x', 513)`,
		"payload: is null":                           `payload => NULL`,
		"payload: has 4194305 bytes":                 `payload => decode(repeat('00', 4194305), 'hex')`,
		"schema_version: -1 is less than 0":          `schema_version => -1`,
		"index: -1 is less than 0":                   `index => -1`,
		"resend_for: 00:00:00 is not between":        `resend_for => '0'`,
		"occurred_at:":                               `occurred_at => 'infinity'`,
		"deliver_at: infinity is not between":        `deliver_at => 'infinity'`,
		"deliver_at: -infinity is not between":       `deliver_at => '-infinity'`,
		"idempotency_key: the event has a version":   `idempotency_key => 'k', version => 1`,
		"version: 0 is less than 1":                  `version => 0`,
		"version: -1 is less than 1":                 `version => -1`,
		"headers: is not an object":                  `headers => '[]'`,
		`headers: the value of "a" is not a string`:  `headers => '{"a": 1}'`,
		`headers: the name "boxpair-x" is reserved`:  `headers => '{"boxpair-x": ""}'`,
		`headers: the name "traceparent" is reserve`: `headers => '{"traceparent": ""}'`,
		"headers: a name: is required":               `headers => '{"": ""}'`,
		"headers: have 32769 bytes":                  `headers => jsonb_build_object('a', repeat('x', 32768))`,
		"headers: there are 1025":                    `headers => (SELECT jsonb_object_agg(n::text, '') FROM generate_series(1, 1025) n)`,
	} {
		given := map[string]string{"producer": "'p'", "topic": "'t'", "source": "'s'", "version": "1", "payload": "''"}
		all := arguments
		for n, v := range given {
			if !strings.Contains(arguments, n+" =>") {
				all += ", " + n + " => " + v
			}
		}
		_, _, err := r.writeSQL(r.pool, all)
		if err == nil || !strings.Contains(err.Error(), "outbox_write: "+want) {
			t.Errorf("%s: error is %v, want %q", arguments, err, want)
		}
	}
	if q := r.queue(); len(q) != 0 {
		t.Errorf("queue holds %v", q)
	}
}

// TestTriggerWritesEvents is how a table that is changed from everywhere tells of it.
func TestTriggerWritesEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`CREATE TABLE orders (id text PRIMARY KEY, total int, version bigint NOT NULL DEFAULT 1);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ` + r.names.Table("outbox_write") + `(producer => 'orders', topic => 'order.changed', key => NEW.id,
        source => 'order/' || NEW.id, version => NEW.version, content_type => 'application/json',
        payload => convert_to(jsonb_build_object('total', NEW.total)::text, 'UTF8'));
    RETURN NULL;
END $$;
CREATE TRIGGER tell AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION tell()`)
	r.exec(`INSERT INTO orders (id, total) VALUES ('a', 1), ('b', 2)`)
	r.exec(`UPDATE orders SET total = 3, version = version + 1 WHERE id = 'a'`)
	q := r.queue()
	if len(q) != 3 {
		t.Fatalf("%d events are queued", len(q))
	}
	ids := map[uuid.UUID]string{
		idgen.Of("orders", "order/a", 1, 0): `{"total": 1}`, idgen.Of("orders", "order/b", 1, 0): `{"total": 2}`,
		idgen.Of("orders", "order/a", 2, 0): `{"total": 3}`,
	}
	for _, e := range q {
		if ids[e.ID] != string(e.Payload) {
			t.Errorf("event %v has the payload %s", e.ID, e.Payload)
		}
	}
}

// TestSQLWriterReadsNoNameFromTheSearchPath: what the caller has put in front is not used.
func TestSQLWriterReadsNoNameFromTheSearchPath(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`CREATE SCHEMA evil; CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT ''\x00''::bytea';
CREATE FUNCTION evil.get_byte(bytea, int) RETURNS int LANGUAGE sql AS 'SELECT 1/0'`)
	tx := r.begin()
	_, err := tx.Exec(r.ctx(), "SET LOCAL search_path = evil, pg_catalog")
	r.ok(err)
	id, _, err := r.writeSQL(tx, "producer => 'p', topic => 't', source => 's', version => 1, payload => ''")
	if err != nil || id != idgen.Of("p", "s", 1, 0) {
		t.Errorf("wrote %v, %v", id, err)
	}
}

func TestSQLWriterNeedsTheProducersPrivileges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := newParts(t, r.pool)
	p.grant(t, postgres.Config{Schema: r.names.Schema()})
	const arguments = "producer => 'p', topic => 't', source => 's', version => 1, payload => ''"
	if _, _, err := r.writeSQL(p.producer, arguments); err != nil {
		t.Errorf("as producer: %v", err)
	}
	if _, known, err := r.writeSQL(p.producer, arguments); err != nil || !known {
		t.Errorf("as producer, again: known %t, %v", known, err)
	}
	if _, _, err := r.writeSQL(p.consumer, arguments); err == nil {
		t.Error("a consumer can write")
	}
}

// TestEventDeferredInSQLIsCancelledAndMovedInGo, and writing it again with another time changes
// nothing.
func TestEventDeferredInSQLIsCancelledAndMovedInGo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	later := func(version int, at string) uuid.UUID {
		t.Helper()
		id, _, err := r.writeSQL(r.pool, fmt.Sprintf("producer => 'p', topic => 't', source => 's', key => 'k', payload => '', version => %d, deliver_at => %s", version, at))
		r.ok(err)
		return id
	}
	kept, gone := later(1, "now() + interval '1 hour'"), later(2, "now() + interval '1 hour'")
	if again := later(1, "now()"); again != kept {
		t.Errorf("the event is %v, and then %v", kept, again)
	}
	out, at := r.outbox("p"), time.Now().Add(48*time.Hour).Truncate(time.Microsecond)
	if ids, err := out.Cancel(r.ctx(), "settled", gone); err != nil || len(ids) != 1 {
		t.Errorf("cancelled %v, %v", ids, err)
	}
	if ids, err := out.Reschedule(r.ctx(), at, kept, gone); err != nil || len(ids) != 1 {
		t.Errorf("moved %v, %v", ids, err)
	}
	list, err := out.ListDeferred(r.ctx(), outbox.DeferredFilter{Key: "k"})
	if err != nil || len(list) != 1 || list[0].ID != kept || !list[0].DueAt.Equal(at) {
		t.Errorf("deferred are %v, %v", list, err)
	}
	if q := r.queue(); len(q) != 0 {
		t.Errorf("queue holds %v", q)
	}
}

// TestMigrationOfTheSQLWriterKeepsItsGrants: writers do not stand still until the grants are run
// again, and nobody gets one that he did not have.
func TestMigrationOfTheSQLWriterKeepsItsGrants(t *testing.T) {
	t.Parallel()
	const arguments = "producer => 'p', topic => 't', source => 's', version => 1, payload => ''"
	r := newRig(t)
	for _, cfg := range []postgres.Config{{Schema: r.names.Schema() + "_2"}, {Schema: `Odd "%s'` + r.names.Schema(), Prefix: `pre"fix%I `}} {
		p := newParts(t, r.pool)
		names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
		r.ok(err)
		migrateTo(r, names, 5)
		grants, err := migrations.PostgresGrants(names, migrations.Roles{Producer: p.roles.Producer}) // whose tables are there
		r.ok(err)
		r.exec(grants)
		r.exec("GRANT USAGE ON SCHEMA " + migrations.Quote(names.Schema()) + " TO " + migrations.Quote(p.roles.Consumer))
		monitor := migrations.Quote(p.roles.Monitor)
		write := "GRANT EXECUTE ON FUNCTION " + names.Table("outbox_write") + " TO " + monitor
		r.exec(write + " WITH GRANT OPTION")
		applied, err := postgres.Migrate(t.Context(), r.pool, cfg)
		r.ok(err)
		if len(applied) == 0 || applied[0].Number != 6 {
			t.Fatalf("applied %v", applied)
		}
		r.names = names
		if _, _, err := r.writeSQL(p.producer, arguments+", deliver_at => now() + interval '1 hour'"); err != nil {
			t.Errorf("as producer: %v", err)
		}
		if _, _, err := r.writeSQL(p.consumer, arguments); err == nil || !strings.Contains(err.Error(), "outbox_write") {
			t.Errorf("as consumer: %v", err)
		}
		granted := value[string](r, `SELECT string_agg(CASE grantee WHEN 0 THEN 'public' ELSE grantee::regrole::text END || is_grantable, ' ' ORDER BY is_grantable, grantee <> proowner)
			FROM pg_proc, aclexplode(proacl) WHERE proname = $1 AND pronamespace = $2::regnamespace`, names.Prefix()+"outbox_write", migrations.Quote(names.Schema()))
		owner := value[string](r, "SELECT current_user::text")
		if want := fmt.Sprintf("%sfalse %sfalse %strue", owner, migrations.Quote(p.roles.Producer), monitor); granted != want {
			t.Errorf("granted to %s, want %s", granted, want)
		}
	}
}

// migrateTo brings tables up to an earlier migration.
func migrateTo(r *rig, names migrations.Names, last int) {
	r.Helper()
	all, err := migrations.Postgres(names)
	r.ok(err)
	r.exec("CREATE SCHEMA " + migrations.Quote(names.Schema()))
	history := names.Table(migrations.HistoryTable)
	r.exec("CREATE TABLE " + history + " (number integer PRIMARY KEY, name text, checksum text, applied_at timestamptz DEFAULT now())")
	for _, m := range all[:last] {
		_, err := r.pool.Exec(r.ctx(), m.SQL, pgx.QueryExecModeSimpleProtocol)
		r.ok(err)
		r.exec("INSERT INTO "+history+" VALUES ($1, $2, $3)", m.Number, m.Name, m.Checksum)
	}
}
