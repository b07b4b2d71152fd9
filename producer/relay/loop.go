package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/notice"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/internal/topics"
	"github.com/boxpair/boxpair/internal/version"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// relayLoop drives a machine with a store, a transport and a clock. relayLoop owns all goroutines
// of a run: the goroutine that steps the core, the goroutine that sends, the goroutine that
// listens, and a goroutine for every statement under way. The core bounds the number of statements.
type relayLoop struct {
	store  outbox.RelayStore
	sender transport.Sender
	cfg    Config
	asker  *statement.Asker
	once   bool
	wakes  wakes
	woken  *wakeup.Subscription // to wakes
	heard  atomic.Bool          // the core knows of a signal that has arrived

	origin time.Time // of the core's time
	box    mailbox
	sendq  chan *core.Entry
	drop   dropping
	until  [idgen.Shards]atomic.Int64 // until when events of a shard may be sent
	still  *suspension
	tasks  sync.WaitGroup

	mu   sync.Mutex // guards core against Health and the goroutine that listens
	core *core.Machine

	observers notice.Queue
	err       error // errors of failed statements, for RunOnce
}

func newRelayLoop(store outbox.RelayStore, sender transport.Sender, cfg Config, once bool) *relayLoop {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	l := &relayLoop{
		store: store, sender: sender, cfg: cfg, once: once, woken: new(wakeup.Subscription),
		origin:    time.Now(),
		box:       mailbox{signal: make(chan struct{}, 1)},
		sendq:     make(chan *core.Entry, cfg.Window),
		still:     newSuspension(),
		observers: notice.Queue{Log: cfg.Logger.With("relay", cfg.Name)},
		drop:      dropping{patterns: cfg.DropUnroutable, log: cfg.Logger.With("relay", cfg.Name)},
	}
	settings := cfg.core()
	settings.Origin, settings.Version = l.origin, version.Library()
	_, settings.Witnesses = store.(outbox.Witnesser)
	settings.Host, _ = os.Hostname() // "" if the system does not tell
	l.core, l.asker = core.New(settings, l.topics(), rnd, once), settings.Asker()
	return l
}

// topics tells the core about topics.
func (l *relayLoop) topics() core.Topics {
	t := core.Topics{Route: l.route, Batch: batchLimitOf(l.sender), Matches: topics.Match, Downstream: func(string) core.Downstream {
		return core.Downstream{PerSecond: l.cfg.MaxPerSecond}
	}}
	if router, ok := l.sender.(*topicRouter); ok {
		t.Downstream = router.downstream
	}
	return t
}

// route returns the route of a topic. If the sender panics, the topic is a route of its own.
func (l *relayLoop) route(topic string) (name string) {
	defer func() {
		if v := recover(); v != nil {
			name = topic
			l.cfg.Logger.Error("publisher panicked when it was asked for a route", "topic", topic, "panic", fmt.Sprintf("%T", v), "relay", l.cfg.Name)
		}
	}()
	return l.sender.Route(topic)
}

// subscribe has the commits of this process wake the loop, until the returned function is called.
func (l *relayLoop) subscribe(w wakes) (end func()) {
	l.wakes = w
	l.woken, end = w.subscribe(l.owns)
	return end
}

// owns returns the shards, a bit each, that no other relay has at this time. Before a signal of the
// store has arrived it returns none: a signal of this process shows the relay that signals work.
func (l *relayLoop) owns(shards uint64) (owned uint64) {
	now := l.now()
	if !l.heard.Load() || l.still.doubtful(now) {
		return 0
	}
	for rest := shards; rest != 0; rest &= rest - 1 {
		if no := bits.TrailingZeros64(rest); now < time.Duration(l.until[no].Load()) {
			owned |= 1 << no
		}
	}
	return owned
}

func (l *relayLoop) now() time.Duration { return time.Since(l.origin) }

// run steps the core until the core has stopped. The end of ctx stops the core.
func (l *relayLoop) run(ctx context.Context) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.tasks.Go(func() { l.sendAll(work) })
	if !l.cfg.PollOnly && !l.once {
		l.tasks.Go(func() { l.listen(work) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := ctx.Done()
	var abandon <-chan time.Time
	for {
		wait, stopped := l.step(work)
		if stopped {
			break
		}
		if l.err != nil && stop != nil { // the core has stopped itself
			stop, abandon = nil, time.After(l.cfg.ShutdownTimeout)
		}
		timer.Reset(wait)
		select {
		case <-l.box.signal:
		case <-timer.C:
		case <-l.woken.Woken:
			l.box.wake(l.woken.Take())
		case <-stop:
			stop = nil
			l.locked(l.core.Stop)
			abandon = time.After(l.cfg.ShutdownTimeout)
		case <-abandon:
			abandon = nil
			l.locked(l.core.Abandon)
		}
	}
	cancel()
	l.tasks.Wait()
}

func (l *relayLoop) locked(do func(now time.Duration)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do(l.now())
}

// step gives the core its input, and starts the core's calls and sends. Without input, the next
// step is due after wait.
func (l *relayLoop) step(work context.Context) (wait time.Duration, stopped bool) {
	replies, outcomes, overdue, woken := l.box.take()
	witness := l.box.witness.Load()
	noticed := l.still.noticed.Load()
	l.mu.Lock()
	c := l.core
	now := l.now()
	rested := l.still.resting.Load()
	if !rested && l.still.doubtful(now) { // before what has come in meanwhile
		c.Suspended(now)
	}
	l.feed(work, now, replies, outcomes)
	c.Overdue(now, overdue)
	c.Witness(now, witness)
	if !woken.None() {
		c.Wake(now, woken)
	}
	if rested && !c.Idle() {
		c.Suspended(now) // nobody has looked
		l.still.resume(now)
	}
	c.Advance(now)
	if !rested && c.Idle() {
		l.still.rest()
	}
	calls, sends, notes := c.Flush()
	l.observe(c.Notices())
	var lost uint64
	for i := range l.until {
		if until := c.Until(i); l.until[i].Swap(int64(until)) > 0 && until == 0 {
			lost |= 1 << i
		}
	}
	l.still.told.Store(noticed)
	l.heard.Store(c.Heard())
	at, stopped := c.NextAdvance()
	for _, e := range sends {
		l.sendq <- e // never blocks: sendq has room for the window
	}
	l.mu.Unlock()
	if lost != 0 && l.wakes.others != nil { // what was committed since, they were not told of
		l.wakes.others.Send(wakeup.Wakeup{Shards: lost, Deferred: true})
	}
	for _, n := range notes {
		//nolint:sloglint // a constant where the core made the note
		l.cfg.Logger.LogAttrs(work, n.Level, n.Msg, append(n.Attrs, slog.String("relay", l.cfg.Name))...)
	}
	for _, cl := range calls {
		l.tasks.Go(func() {
			l.execute(work, cl)
			l.box.reply(cl)
		})
	}
	return at - now, stopped
}

// feed gives the core what statements and sends have come to.
func (l *relayLoop) feed(work context.Context, now time.Duration, replies []*core.Call, outcomes []core.SendResult) {
	for _, cl := range replies {
		l.core.Reply(now, cl)
		if cl.Op() == statement.OpMark && cl.Err == nil {
			_ = fault.Hit(work, fault.AfterMark)
		}
		if cl.Err != nil && l.once && cl.Op() != statement.OpReport {
			l.err = errors.Join(l.err, cl.Err)
			l.core.Stop(now)
		}
	}
	for _, res := range outcomes {
		l.core.Outcome(now, res)
	}
}

// execute runs a statement within its time limit. A statement is useless beyond the lease, since
// changes are fenced.
func (l *relayLoop) execute(ctx context.Context, cl *core.Call) {
	limit := l.cfg.LeaseTTL
	switch {
	case cl.Op().OnLeases(), cl.Op() == statement.OpReport:
		limit /= 3
	case cl.Op() == statement.OpFetchKey:
		limit /= core.KeyShare
	case cl.Op() == statement.OpPauses: // sending waits for it
		limit = min(limit, 2*time.Second)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	before, after := cl.Op().Points()
	if before != "" {
		if cl.Err = fault.Hit(ctx, before); cl.Err != nil {
			return
		}
	}
	cl.Err = cl.Execute(ctx, l.store, l.asker)
	if after != "" && cl.Err == nil {
		cl.Err = fault.Hit(ctx, after)
	}
	if s, is := cl.Statement.(*statement.Release); is && cl.Err == nil && len(s.Leases) > 0 {
		l.tellFreed(ctx)
	}
}

// tellFreed tells other relays that shards are without an owner. Relays that are not told notice with
// their next heartbeat.
func (l *relayLoop) tellFreed(ctx context.Context) {
	if l.cfg.PollOnly {
		return
	}
	if err := l.store.Notify(ctx, wakeup.Freed.Text(l.cfg.Name)); err != nil && !errors.Is(err, outbox.ErrNoSignal) {
		l.cfg.Logger.WarnContext(ctx, "other relays were not told of shards that were given back: they take them later", "error", err, "relay", l.cfg.Name)
	}
}

// listen passes on wake-ups from other processes.
func (l *relayLoop) listen(ctx context.Context) {
	for fails := 0; ; fails++ {
		began := time.Now()
		err := l.listenOnce(ctx)
		if ctx.Err() != nil || errors.Is(err, outbox.ErrNoSignal) {
			return
		}
		l.listening(false)
		l.box.notify()
		if time.Since(began) > time.Minute {
			fails = 0
		}
		l.cfg.Logger.WarnContext(ctx, "listening for wake-ups ended, polling meanwhile", "error", err, "relay", l.cfg.Name)
		if pace.Sleep(ctx, min(5*time.Second, 100*time.Millisecond<<min(fails, 10))) != nil {
			return
		}
		l.box.wake(wakeup.All.And(wakeup.Changed)) // for commits and changes during the break
	}
}

func (l *relayLoop) listenOnce(ctx context.Context) error {
	if store, ok := l.store.(outbox.Witnesser); ok {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		l.tasks.Go(func() { l.still.watch(ctx, l.now, l.box.notify) })
		return store.ListenWitnessed(ctx, l.box.witnessed, l.passWakeup)
	}
	return l.store.Listen(ctx, l.passWakeup)
}

// passWakeup passes on a wake-up from another process. Commits in this process are known already: a
// second poll would use up the rate of wake-ups, and delay the next polls.
func (l *relayLoop) passWakeup(text string) {
	n, from := wakeup.Parse(text)
	if n.Shards != 0 { // the signal of an operator does not show that writers send signals
		l.listening(true)
	}
	if from == "" || from != l.wakes.id && from != l.cfg.Name {
		l.box.wake(n)
	}
}

func (l *relayLoop) listening(heard bool) {
	l.locked(func(now time.Duration) {
		l.core.Listening(now, heard)
		l.heard.Store(l.core.Heard())
	})
}

// mailbox collects the input between two steps. Its methods never block.
type mailbox struct {
	signal  chan struct{} // has room for one
	witness atomic.Int64  // of the session that listens

	mu       sync.Mutex
	replies  []*core.Call
	outcomes []core.SendResult
	spare    []core.SendResult
	through  int64 // sends up to this number are overdue
	woken    wakeup.Wakeup
}

func (b *mailbox) notify() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

func (b *mailbox) reply(cl *core.Call) {
	b.mu.Lock()
	b.replies = append(b.replies, cl)
	b.mu.Unlock()
	b.notify()
}

func (b *mailbox) outcome(res core.SendResult) {
	b.mu.Lock()
	b.outcomes = append(b.outcomes, res)
	first := len(b.outcomes) == 1
	b.mu.Unlock()
	if first {
		b.notify()
	}
}

func (b *mailbox) overdue(through int64) {
	b.mu.Lock()
	b.through = max(b.through, through)
	b.mu.Unlock()
	b.notify()
}

func (b *mailbox) wake(n wakeup.Wakeup) {
	b.mu.Lock()
	b.woken = b.woken.And(n)
	b.mu.Unlock()
	b.notify()
}

func (b *mailbox) witnessed(witness int64) {
	b.witness.Store(witness)
	b.notify()
}

// take empties the box. The outcomes are valid until the next take.
func (b *mailbox) take() (replies []*core.Call, outcomes []core.SendResult, overdue int64, woken wakeup.Wakeup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	replies, outcomes, overdue, woken = b.replies, b.outcomes, b.through, b.woken
	b.replies, b.through, b.woken = nil, 0, wakeup.Wakeup{}
	clear(b.spare)
	b.outcomes, b.spare = b.spare[:0], outcomes
	return replies, outcomes, overdue, woken
}

// batchLimitOf returns the batch limit of a sender.
func batchLimitOf(sender transport.Sender) core.BatchLimit {
	switch s := sender.(type) {
	case *topicRouter:
		return s.batchLimit
	case transport.BatchSender:
		return func(string) (messages, bytes int) { return s.BatchLimit() }
	default:
		return func(string) (messages, bytes int) { return 0, 0 }
	}
}
