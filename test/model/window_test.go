package modeltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

const (
	window     = time.Hour
	dispatches = 4 // more than most windows in memory hold
)

// returned is an outcome besides the verdicts: the message is delivered again.
const returned = inbox.Verdict(100)

// inboxModel is the expected state of an inbox: a map of applied messages, and the time up to which
// they may be forgotten.
type inboxModel struct {
	stamps     map[uuid.UUID]time.Time
	applied    map[uuid.UUID]transport.Digest
	aside      map[string]bool // dispatch ID and digest of what was set aside
	registered time.Time
	forgotten  time.Time
}

// verdicts returns the possible answers of a transaction. They depend on the table alone, except
// that a dispatch ID may be known for longer than promised.
func (m *inboxModel) verdicts(id uuid.UUID, digest transport.Digest) []inbox.Verdict {
	known, applied := m.applied[id]
	old := m.stamps[id].Before(m.forgotten)
	verdict := inbox.Duplicate
	switch {
	case !applied && old:
		return []inbox.Verdict{inbox.TooOld}
	case !applied:
		return []inbox.Verdict{inbox.Applied}
	case !known.Matches(digest):
		verdict = inbox.Altered
	}
	if old {
		return []inbox.Verdict{verdict, inbox.TooOld}
	}
	return []inbox.Verdict{verdict}
}

// deliver returns the possible outcomes of a delivery whose transactions have faults, one after
// another, and then the fault then.
func (m *inboxModel) deliver(id uuid.UUID, digest transport.Digest, faults []fault, then fault) []inbox.Verdict {
	known, held := m.applied[id]
	held = held && known.Matches(digest) // perhaps in memory: then no transaction is begun
	for _, f := range faults {
		if f == unreachable || f == busy {
			continue
		}
		may := m.verdicts(id, digest)
		if may[0] != inbox.Applied {
			return may // it has answered
		}
		if f == lostCommitted {
			m.applied[id] = digest
		}
	}
	if then != works {
		if held {
			return []inbox.Verdict{returned, inbox.Duplicate}
		}
		return []inbox.Verdict{returned}
	}
	may := m.verdicts(id, digest)
	if may[0] == inbox.Applied {
		m.applied[id] = digest
	}
	return may
}

// advance is a pass of forgetting.
func (m *inboxModel) advance(now time.Time) {
	until := now.Truncate(time.Microsecond).Add(-window)
	if until.After(m.registered) && until.After(m.forgotten) {
		m.forgotten = until
	}
}

// windowMachine is an inbox on SQLite, its model, and a sequence of actions on both.
type windowMachine struct {
	t       *testing.T
	db      *sql.DB
	store   *faultyStore[*sql.Tx]
	inbox   *consumer.Inbox[*sql.Tx]
	handler *consumer.Handler[*sql.Tx]
	model   inboxModel
	probes  int
}

func TestOutcomeOfAMessageDependsOnTheTableAndNotOnTheWindow(t *testing.T) {
	t.Parallel()
	content := template(t)
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, rt, func(t *testing.T) {
			m := newWindowMachine(t, rt, content)
			defer func() { _ = m.db.Close() }()
			rt.Repeat(map[string]func(*rapid.T){
				"deliver":  m.deliver,
				"deliver ": m.deliver, // most often
				"Deliver":  m.deliver,
				"restart":  m.restart,
				"failOver": m.failOver,
				"forget":   m.forget,
				"pass":     m.minutes,
				"":         m.check,
			})
		})
	})
}

func newWindowMachine(t *testing.T, rt *rapid.T, content []byte) *windowMachine {
	db, store := openCopy(t, content)
	m := &windowMachine{t: t, db: db, store: &faultyStore[*sql.Tx]{Store: store}, model: inboxModel{
		stamps:  make(map[uuid.UUID]time.Time),
		applied: make(map[uuid.UUID]transport.Digest),
		aside:   make(map[string]bool),
	}}
	m.store.next = func() fault { return works }
	m.restart(rt)
	m.model.registered = time.Now()
	return m
}

// restart is a new process: its window has another size and is warmed from the table.
func (m *windowMachine) restart(rt *rapid.T) {
	inbox, err := consumer.New(inbox.Store[*sql.Tx](m.store), consumer.Config{
		Service: "model", Window: window, MaxClockStep: 1000 * window,
		CacheSize: rapid.SampledFrom([]int{-1, 1, 2, 3, 64}).Draw(rt, "size of the window"),
	})
	if err != nil {
		rt.Fatal(err)
	}
	m.inbox = inbox
	// Failures here are the database's, so no attempt may be the last.
	many := 1 << 20
	m.handler, err = inbox.Handle("apply", func(ctx context.Context, w *consumer.Work[*sql.Tx], _ *message.Message) error {
		_, err := w.DB().ExecContext(ctx, `INSERT INTO effects (id) VALUES (?)`, w.Event().ID.String())
		return err
	}, consumer.HandlerConfig{Topic: "topic", Retry: consumer.RetryConfig{QuickAttempts: many, MaxAttempts: many}})
	if err == nil {
		err = inbox.Check(m.t.Context())
	}
	if err != nil {
		rt.Fatal(err)
	}
}

// deliver delivers a copy of one of a few dispatches, with one of several contents, or without a
// digest.
func (m *windowMachine) deliver(rt *rapid.T) {
	id := dispatch(rapid.IntRange(0, dispatches-1).Draw(rt, "dispatch"))
	if _, known := m.model.stamps[id]; !known { // of any age: another consumer may have been slow
		age := time.Duration(rapid.IntRange(-10, 180).Draw(rt, "minutes of age")) * time.Minute
		m.model.stamps[id] = time.Now().Truncate(time.Millisecond).Add(-age)
	}
	content := rapid.SampledFrom([]string{"this", "this", "this", "that"}).Draw(rt, "content")
	digest := rapid.SampledFrom([]bool{true, true, true, false}).Draw(rt, "with digest")
	faults := rapid.SliceOfN(rapid.SampledFrom([]fault{unreachable, busy, commitFails, conflicts, lostCommitted, lostUndone}), 0, 2).Draw(rt, "faults")
	then := rapid.SampledFrom([]fault{works, works, works, works, works, works, unreachable, busy}).Draw(rt, "then")
	m.consume(rt, id, content, digest, faults, then)
}

func (m *windowMachine) consume(rt *rapid.T, id uuid.UUID, content string, withDigest bool, faults []fault, then fault) {
	e := transport.Event{ID: id, Topic: "topic", Stamp: m.model.stamps[id], Payload: []byte(content)}
	if withDigest {
		e.Digest = transport.ContentDigest(&e)
	}
	before := m.handler.Counters().DuplicatesByWindow
	left := faults
	m.store.last = inbox.None
	m.store.next = func() fault {
		if len(left) == 0 {
			m.store.down = then == unreachable
			return then
		}
		f := left[0]
		left = left[1:]
		return f
	}
	err := m.handler.Consume(e.Message())
	m.store.next, m.store.down = func() fault { return works }, false
	got := m.store.last
	switch {
	case err != nil:
		got = returned
	case m.handler.Counters().DuplicatesByWindow > before:
		got = inbox.Duplicate
	}
	if want := m.model.deliver(id, e.Digest, faults, then); !slices.Contains(want, got) {
		rt.Fatalf("%s, %s, digest %v, faults %v, then %v: outcome %v (%v), want one of %v",
			id, content, withDigest, faults, then, got, err, want)
	}
	if got == inbox.Altered || got == inbox.TooOld {
		m.model.aside[fmt.Sprint(id, e.Digest)] = true
	}
}

// failOver loses the commits of the last few messages, like the promotion of a lagging standby. The
// process notices by an error at its next message.
func (m *windowMachine) failOver(rt *rapid.T) {
	for range rapid.IntRange(1, 3).Draw(rt, "lost commits") {
		var id uuid.UUID
		var raw []byte
		err := m.db.QueryRow(`DELETE FROM boxpair_inbox WHERE seq = (SELECT max(seq) FROM boxpair_inbox) RETURNING dispatch_id`).Scan(&raw)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err == nil {
			id, err = uuid.FromBytes(raw)
		}
		if err == nil {
			_, err = m.db.Exec(`DELETE FROM effects WHERE id = ?`, id.String())
		}
		if err != nil {
			rt.Fatal(err)
		}
		delete(m.model.applied, id)
	}
	m.probes++
	probe := dispatch(1000 + m.probes)
	m.model.stamps[probe] = time.Now().Truncate(time.Millisecond)
	m.consume(rt, probe, "this", true, []fault{unreachable}, works)
}

// forget is one pass of what Run does at intervals.
func (m *windowMachine) forget(rt *rapid.T) {
	if err := m.inbox.RunOnce(m.t.Context()); err != nil {
		rt.Fatal(err)
	}
	m.model.advance(time.Now())
}

// minutes lets time pass.
func (m *windowMachine) minutes(rt *rapid.T) {
	time.Sleep(time.Duration(rapid.IntRange(1, 50).Draw(rt, "minutes")) * time.Minute)
}

// check compares the effects and the messages set aside with the model.
func (m *windowMachine) check(rt *rapid.T) {
	effects := make(map[string]int)
	rows, err := m.db.Query(`SELECT id, count(*) FROM effects GROUP BY id`)
	if err != nil {
		rt.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			rt.Fatal(err)
		}
		effects[id] = n
	}
	if err := rows.Err(); err != nil {
		rt.Fatal(err)
	}
	want := make(map[string]int)
	for id := range m.model.applied {
		want[id.String()] = 1
	}
	if !maps.Equal(effects, want) {
		rt.Fatalf("effects %v, want %v", effects, want)
	}
	parked, err := m.store.ListParkedMessages(m.t.Context(), inbox.Filter{Limit: 1000})
	if err != nil {
		rt.Fatal(err)
	}
	aside := make(map[string]bool)
	for _, p := range parked {
		aside[fmt.Sprint(p.ID, p.Digest)] = true
	}
	if len(parked) != len(aside) || !maps.Equal(aside, m.model.aside) {
		rt.Fatalf("set aside: %v, want %v", aside, m.model.aside)
	}
}
