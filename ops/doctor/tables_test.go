package doctor_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/outbox"
)

var ofTables = []doctor.Check{
	doctor.Migrations, doctor.Sequence, doctor.Relays, doctor.ExpiredLease, doctor.Waiting, doctor.DeadLetters, doctor.Effects, doctor.Routes,
	doctor.Pauses, doctor.Window, doctor.IdleConsumer,
}

func TestMissingMigrationsAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`DELETE FROM boxpair.schema_migrations WHERE number = 16`)
	want(t, r.examine(), doctor.Migrations, doctor.Stalls, "16", "boxpair migrate")
	empty := doctor.Config{Outboxes: []doctor.Database{{Name: "empty", Pool: pool(t, testenv.Postgres(t))}}}
	want(t, examine(t, empty), doctor.Migrations, doctor.Stalls, `there is no table "boxpair"."outbox_events"`)
}

func TestFunctionsOfARenamedSchemaAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`ALTER SCHEMA boxpair RENAME TO renamed`)
	r.cfg = doctor.Config{Outboxes: []doctor.Database{{Name: "shop", Pool: r.pool, Schema: "renamed"}}}
	want(t, r.examine(), doctor.Migrations, doctor.Loses, "renamed", "boxpair migrate")
}

func TestTroubleOfAnOutboxIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	want(t, r.examine(), doctor.Relays, doctor.Stalls, "no relay runs")
	r.attended()
	none(t, r.examine(), ofTables...)

	dead, old := r.event(), r.event()
	r.exec(`INSERT INTO boxpair.outbox_parked (id, shard, state, key, last_error) VALUES ($1, 0, 'dead', '', 'refused')`, dead)
	r.exec(`UPDATE boxpair.outbox_events SET created_at = created_at - interval '1 hour' WHERE id = $1`, old)
	r.exec(`INSERT INTO boxpair.outbox_queue (shard, id) VALUES (0, $1)`, old)
	r.exec(`ALTER SEQUENCE boxpair.outbox_events_id_seq RESTART WITH 1`)
	r.exec(`UPDATE boxpair.outbox_shards SET lease_until = clock_timestamp() - interval '1 minute' WHERE shard < 3`)
	r.exec(`UPDATE boxpair.outbox_shards SET lease_until = '-infinity', owner = NULL WHERE shard = 3`)
	routes := []outbox.StalledRoute{{Topic: "order.placed", Route: "order.placed", State: outbox.RouteRefusing, For: time.Minute, LastError: "312 NO_ROUTE"}}
	if err := r.store.ReportRelay(t.Context(), "relay-1", outbox.Report{Stalled: routes, StalledChanged: true}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []control.Pause{{Kind: control.Topic, Name: "order.#", Reason: "wrong\nprices", By: "ann"}, {Kind: control.Consumer, Name: "stock/reserve", Reason: "counting", By: "ann"}} {
		if err := p.Begin(t.Context(), r.store); err != nil {
			t.Fatal(err)
		}
	}
	found := r.examine()
	want(t, found, doctor.DeadLetters, doctor.Stalls, "1 dead events")
	want(t, found, doctor.Waiting, doctor.Stalls, "the oldest event waits for 1h0m")
	want(t, found, doctor.Sequence, doctor.Loses, "SELECT setval('boxpair.outbox_events_id_seq', 2)")
	want(t, found, doctor.Relays, doctor.Stalls, "no relay owns 4 of 64 shards")
	want(t, found, doctor.ExpiredLease, doctor.Stalls, "relay relay-1", "3 shards")
	want(t, found, doctor.Routes, doctor.Stalls, `"order.placed"`, "312 NO_ROUTE")
	want(t, found, doctor.Pauses, doctor.Stalls, "by ann: wrong prices", "boxpair resume --outbox URL --topic 'order.#'")
	want(t, found, doctor.Pauses, doctor.Stalls, "boxpair resume --inbox URL --consumer 'stock/reserve'")
}

func TestTroubleOfAnInboxIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.attended()
	r.event()
	none(t, r.examine(), ofTables...)
	id, err := r.store.Register(t.Context(), "stock/reserve", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.NoteHorizon(t.Context(), id.Consumer, 48*time.Hour, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE boxpair.inbox_consumers SET passed_at = passed_at - interval '3 hours'`)
	park := func(state string, ago string, next any) {
		r.exec(`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, ordered, claimed, state, digest, topic, key, metadata, payload, parked_at, next_attempt_at)
			VALUES ($1, $2, false, false, $3, decode(repeat('00', 16), 'hex'), 'order.placed', '', '{}', 'secret', clock_timestamp() - $4::interval, $5)`,
			id.Consumer, uuid.New(), state, ago, next)
	}
	park("dead", "1 minute", nil)
	park("too_old", "1 minute", nil)
	park("altered", "1 minute", nil)
	park("retrying", "5 hours", time.Now())
	r.exec(`INSERT INTO boxpair.inbox_effects (dispatch_id, effect_key, consumer, ordered, topic, key, metadata, intent, due_at, state, uncertain, ended_at)
		VALUES (gen_random_uuid(), gen_random_uuid(), $1, false, 't', '', '{}', 'secret', NULL, 'uncertain', true, NULL)`, id.Consumer)
	found := r.examine()
	const subject = "shop: consumer stock/reserve"
	want(t, found, doctor.IdleConsumer, doctor.Stalls, subject, "3h0m")
	want(t, found, doctor.DeadLetters, doctor.Stalls, subject, "3 messages", "1 dead, 1 too old, 1 altered", "--consumer 'stock/reserve'")
	want(t, found, doctor.Waiting, doctor.Stalls, subject, "5h0m")
	want(t, found, doctor.Effects, doctor.Stalls, subject, "1 uncertain, 0 dead")
	want(t, found, doctor.Window, doctor.Loses, subject, "its messages may come again for 48h", `producer "orders" in shop may send events again for 240h`, "Window to more than 240h")
	if n := count(found, doctor.Window); n != 1 {
		t.Errorf("the window is %d findings, want one:\n%v", n, found)
	}
}

// A message that fails again and again is named long before it is dead.
func TestRetriedMessageIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.attended()
	id, err := r.store.Register(t.Context(), "stock/reserve", 14*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	park := func(message, state, key, ago string, attempts int, text string) {
		t.Helper()
		r.exec(`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, ordered, claimed, state, digest, topic, key, metadata, payload, parked_at, next_attempt_at, attempts, last_error)
			VALUES ($1, $2, $4 <> '', true, $3, decode(repeat('00', 16), 'hex'), 'order.placed', $4, '{}', 'secret', clock_timestamp() - $5::interval,
				CASE WHEN $3 = 'retrying' THEN clock_timestamp() END, $6, $7)`, id.Consumer, message, state, key, ago, attempts, text)
	}
	const poison = "4b9d2a51-7c11-5d6e-9d7e-2f4c8f3b1a20"
	park(uuid.NewString(), "retrying", "", "4 minutes", 7, "too young")
	none(t, r.examine(), doctor.Waiting)
	park(uuid.NewString(), "retrying", "", "20 minutes", 1, "timeout")
	park(poison, "retrying", "order-7", "11 minutes", 19, "no article\n"+strings.Repeat("é", 100))
	for range 10 {
		park(uuid.NewString(), "following", "order-7", "10 minutes", 0, "")
	}
	park(uuid.NewString(), "following", "order-8", "10 minutes", 0, "")
	found := r.examine()
	want(t, found, doctor.Waiting, doctor.Stalls, "shop: consumer stock/reserve: the message 4b9d2a51 of topic order.placed was tried 19 times in 11m",
		"and 10 messages of its key wait behind it; its last error: no article "+strings.Repeat("é", 69)+"…; boxpair why "+poison+" --inbox URL")
	want(t, found, doctor.Waiting, doctor.Stalls, "was tried once in 20m", "s; its last error: timeout; boxpair why ")
	if first := slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Check == doctor.Waiting }); !strings.Contains(found[first].Remedy, poison) {
		t.Errorf("the message with most behind it is not the first:\n%s", lines(found))
	}
	park(uuid.NewString(), "retrying", "", "6 minutes", 0, "")
	park(uuid.NewString(), "retrying", "", "5 minutes 30 seconds", 3, "")
	found = r.examine()
	want(t, found, doctor.Waiting, doctor.Stalls, "waits for 6m", "without an attempt; boxpair why ")
	want(t, found, doctor.Waiting, doctor.Stalls, "1 more messages are retried for longer than 5m0s; boxpair status --inbox URL --consumer 'stock/reserve'")
}
