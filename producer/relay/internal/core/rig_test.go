package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// rig drives cores with a fake store, a broker that a test scripts, and a
// clock of its own. Everything happens at once unless the test holds it back.
type rig struct {
	t      testing.TB
	store  *memstore.Store
	now    time.Duration
	relays []*rigRelay
	broker func(s rigSend) transport.Result
	// downstream is that of a topic; nil: there is none
	downstream func(topic string) Downstream
	sends      []rigSend // in the order in which the broker saw them
}

type rigRelay struct {
	rig     *rig
	name    string
	core    *Machine
	stopped bool // as by SIGSTOP
	notes   []Note
	calls   []statement.Op
	hold    func(cl *Call) bool // calls that are not executed yet
	held    []*Call
	delay   func(cl *Call) bool // calls that are executed, and not answered yet
	delayed []*Call
	mute    func(s rigSend) bool // sends that are not answered yet
	muted   []rigSend
}

// rigSend is a message at the broker.
type rigSend struct {
	at          time.Duration
	relay       *rigRelay
	entry       *Entry
	gen         uint32
	seq         int64
	tail        []int64
	topic, key  string
	redelivered bool
	inflight    int // messages of that relay at the broker, this one included
	outcome     transport.Outcome
}

var errRefused = errors.New("refused by the test")

func confirmAll(rigSend) transport.Result { return transport.Result{Outcome: transport.Confirmed} }

func newRig(t testing.TB) *rig {
	r := &rig{t: t, broker: confirmAll}
	r.store = memstore.New(func() time.Duration { return r.now })
	return r
}

// filled returns cfg with what a relay sets where its configuration says nothing.
func filled(cfg Options) Options {
	cfg.LeaseTTL = cmp.Or(cfg.LeaseTTL, 10*time.Second)
	cfg.Window = cmp.Or(cfg.Window, 1000)
	cfg.WindowBytes = cmp.Or(cfg.WindowBytes, 64<<20)
	cfg.FetchSize = cmp.Or(cfg.FetchSize, cfg.Window)
	cfg.MaxPerKey = cmp.Or(cfg.MaxPerKey, 100)
	cfg.MaxAttempts = cmp.Or(cfg.MaxAttempts, 10)
	cfg.Backoff.Initial = cmp.Or(cfg.Backoff.Initial, time.Second)
	cfg.Backoff.Max = cmp.Or(cfg.Backoff.Max, max(5*time.Minute, cfg.Backoff.Initial))
	cfg.PollMin = cmp.Or(cfg.PollMin, 5*time.Millisecond)
	cfg.PollMax = cmp.Or(cfg.PollMax, max(500*time.Millisecond, cfg.PollMin))
	cfg.RouteProbeInterval = cmp.Or(cfg.RouteProbeInterval, time.Second)
	cfg.RouteGrace = cmp.Or(cfg.RouteGrace, time.Minute)
	return cfg
}

// start adds a relay, which takes events for small from the beginning. The routes of topics "r/a"
// and "r/b" are both "r".
func (r *rig) start(cfg Options) *rigRelay {
	r.t.Helper()
	if cfg.Name == "" {
		cfg.Name = fmt.Sprint("relay", len(r.relays)+1)
	}
	cfg = filled(cfg)
	route := func(topic string) string { name, _, _ := strings.Cut(topic, "/"); return name }
	rel := &rigRelay{rig: r, name: cfg.Name}
	rel.core = New(cfg, Topics{Route: route, Downstream: r.downstream}, rand.New(rand.NewPCG(1, uint64(len(r.relays)))), false)
	rel.core.reader.budget.average = leastSize
	r.relays = append(r.relays, rel)
	return rel
}

// kill ends a relay as SIGKILL does.
func (r *rig) kill(rel *rigRelay) {
	r.relays = slices.DeleteFunc(r.relays, func(other *rigRelay) bool { return other == rel })
}

// step runs one core, and executes what it asks for. It tells whether anything happened.
func (rel *rigRelay) step() bool {
	c, r := rel.core, rel.rig
	c.Advance(r.now)
	calls, sends, notes := c.Flush()
	rel.notes = append(rel.notes, notes...)
	out := make([]rigSend, len(sends))
	for i, e := range sends {
		out[i] = rigSend{
			at: r.now, relay: rel, entry: e, gen: e.Gen, seq: e.Seq, topic: e.Topic, key: e.Key,
			redelivered: e.Redelivered, inflight: c.dispatch.inflight,
		}
		for _, member := range e.BatchTail {
			out[i].tail = append(out[i].tail, member.Seq)
			out[i].redelivered = out[i].redelivered && member.Redelivered
		}
	}
	for _, s := range out {
		if r.now >= s.entry.shard.until {
			r.t.Errorf("%s sent %d after the end of its lease", rel.name, s.seq)
		}
		if rel.mute != nil && rel.mute(s) {
			rel.muted = append(rel.muted, s)
			continue
		}
		rel.answer(s)
	}
	for _, cl := range calls {
		if rel.hold != nil && rel.hold(cl) {
			rel.held = append(rel.held, cl)
			continue
		}
		rel.execute(cl)
	}
	return len(calls)+len(sends) > 0
}

// rowsOf returns the rows that a statement has brought.
func rowsOf(cl *Call) []outbox.Queued {
	switch s := cl.Statement.(type) {
	case *fetch:
		return s.Rows
	case *fetchKey:
		return s.Rows
	case *fetchParked:
		return slices.Concat(s.Rows...)
	case *statement.Due:
		return s.Rows
	default:
		return nil
	}
}

func (rel *rigRelay) execute(cl *Call) {
	cl.Err = cl.Execute(context.Background(), memstore.Witnessed{Store: rel.rig.store}, rel.core.cfg.Asker())
	rel.calls = append(rel.calls, cl.Op())
	if rel.delay != nil && rel.delay(cl) {
		rel.delayed = append(rel.delayed, cl)
		return
	}
	rel.core.Reply(rel.rig.now, cl)
}

// answer lets the broker see a message and the core its outcome.
func (rel *rigRelay) answer(s rigSend) {
	res := rel.rig.broker(s)
	if res.Outcome != transport.Confirmed && res.Err == nil {
		res.Err = errRefused
	}
	s.outcome = res.Outcome
	rel.rig.sends = append(rel.rig.sends, s)
	rel.core.Outcome(rel.rig.now, SendResult{Entry: s.entry, Gen: s.gen, Result: res})
}

// free answers what was delayed, executes what was held back, and answers what was muted.
func (rel *rigRelay) free() {
	rel.hold, rel.mute, rel.delay = nil, nil, nil
	held, muted, delayed := rel.held, rel.muted, rel.delayed
	rel.held, rel.muted, rel.delayed = nil, nil, nil
	for _, cl := range delayed {
		rel.core.Reply(rel.rig.now, cl)
	}
	for _, cl := range held {
		rel.execute(cl)
	}
	for _, s := range muted {
		rel.answer(s)
	}
}

// called counts the calls of a statement.
func (rel *rigRelay) called(op statement.Op) (n int) {
	for _, called := range rel.calls {
		if called == op {
			n++
		}
	}
	return n
}

// run lets d pass.
func (r *rig) run(d time.Duration) {
	r.t.Helper()
	end := r.now + d
	for steps := 0; ; steps++ {
		if steps > 200_000 {
			r.t.Fatal("relay spins")
		}
		busy := false
		next := end
		for _, rel := range slices.Clone(r.relays) {
			if rel.stopped {
				continue
			}
			busy = rel.step() || busy
			next = min(next, rel.core.wakeAt)
		}
		if busy {
			continue
		}
		if r.now >= end {
			return
		}
		r.now = max(next, r.now+time.Microsecond)
	}
}

// sent returns the Seqs that the broker saw, with an outcome or with any.
func (r *rig) sent(outcomes ...transport.Outcome) []int64 {
	var seqs []int64
	for _, s := range r.sends {
		if len(outcomes) == 0 || slices.Contains(outcomes, s.outcome) {
			seqs = append(seqs, s.seq)
		}
	}
	return seqs
}

// drained fails the test unless everything is delivered or dead, and no relay remembers anything.
func (r *rig) drained() {
	r.t.Helper()
	if queued, live := r.store.Left(); queued != 0 || live != 0 {
		r.t.Errorf("left: %d queued, %d parked", queued, live)
	}
	for _, rel := range r.relays {
		if problem := rel.core.forgotten(); problem != "" {
			r.t.Errorf("%s still remembers: %s", rel.name, problem)
		}
	}
}

// forgotten returns what a core that has nothing to do remembers nevertheless.
func (c *Machine) forgotten() string {
	var left []string
	add := func(name string, n int) {
		if n != 0 {
			left = append(left, fmt.Sprint(name, "=", n))
		}
	}
	add("buffered", c.keys.buffered)
	add("inflight", c.dispatch.inflight)
	add("parked", c.keys.parked)
	add("pending marks", len(c.marks.pending))
	add("refills", len(c.reader.refills))
	add("statements of parking", c.parking.busy)
	add("stalled", len(c.routes.stalled))
	for _, r := range c.routes.byName {
		add("events of route "+r.name, r.events)
		add("inflight of route "+r.name, r.inflight)
		add("queues of route "+r.name, r.ready.n+r.refused.n)
		add("shards left of route "+r.name, int(r.skippedIn))
	}
	for _, sh := range c.shards {
		if sh == nil {
			continue
		}
		name := fmt.Sprint("shard ", sh.no, " ")
		add(name+"index", len(sh.index))
		add(name+"parked", len(sh.parked))
		add(name+"lines", len(sh.lines))
		add(name+"blockedHeads", len(sh.blockedHeads))
		add(name+"recent", len(sh.recent))
		add(name+"skipped", len(sh.back.ahead)+len(sh.back.behind))
		add(name+"held", sh.held.n)
		add(name+"inflight", sh.inflight)
		add(name+"marking", sh.marking)
		if !sh.writer.idle() {
			left = append(left, name+"writer")
		}
	}
	return strings.Join(left, ", ")
}

// outcomes is a broker that answers by Seq, and confirms the rest.
func (r *rig) outcomes(of map[int64]transport.Outcome) {
	r.broker = func(s rigSend) transport.Result {
		if outcome, ok := of[s.seq]; ok {
			return transport.Result{Outcome: outcome}
		}
		return confirmAll(s)
	}
}

// noted tells how often a relay has noted something.
func (rel *rigRelay) noted(msg string) (n int) {
	for _, x := range rel.notes {
		if x.Msg == msg {
			n++
		}
	}
	return n
}

// takenOver returns the shards that a relay has noted to be taken over from a crashed relay, in one note.
func (rel *rigRelay) takenOver(t *testing.T) []int {
	t.Helper()
	const said = "shards taken over from a relay that did not give them back"
	if n := rel.noted(said); n > 1 {
		t.Errorf("takeover was said %d times", n)
	}
	shards, _ := rel.attr(said, "shards").Any().([]int)
	return shards
}

func (rel *rigRelay) attr(msg, key string) slog.Value {
	for _, x := range rel.notes {
		for _, a := range x.Attrs {
			if x.Msg == msg && a.Key == key {
				return a.Value
			}
		}
	}
	return slog.Value{}
}
