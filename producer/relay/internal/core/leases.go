package core

import (
	"log/slog"
	"slices"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// leases acquires, renews, shares and gives back the leases of shards.
type leases struct {
	*Machine

	busy  *Call
	fails int
	retry time.Duration // no statement before this time

	identity       string // of the database; "" if unknown
	held           int    // shards
	live           int    // visible relays; 0: not known
	renewAt        time.Duration
	beatAt         time.Duration
	beatAsked      time.Duration // when the last heartbeat was asked for
	acquireAt      time.Duration
	acquireAsked   time.Duration // when the last Acquire was asked for
	acquired       bool          // an Acquire was answered
	yielding       bool          // some shard is to be given back
	clears         bool          // the rewind of some shard may have to be cleared
	replaysAwaited bool          // some shard waits for news of a replay
	told           bool          // an operator has changed events since the last renewal was asked for
	renewedAt      time.Duration // when the last renewal was answered
	beatsApart     bool          // a renewal with a heartbeat has failed, and no heartbeat has succeeded since

	// distrusted are leases of a database that has lost commits. They are given back before other
	// leases are acquired. No state in memory belongs to a distrusted lease.
	distrusted []outbox.Lease
	abrupt     uint64 // shards that sent events under distrusted leases, as bits
}

// newsInterval is the least time between two renewals for news of operators' changes, and between two
// heartbeats for shards that others have given back.
const newsInterval = 100 * time.Millisecond

// share returns this relay's fair share of the shards, rounded up: no shard is left over, and the
// last relay may get fewer.
func (ls *leases) share() int { return (idgen.Shards + ls.live - 1) / max(ls.live, 1) }

// margin is how much sooner a lease ends here than in the database. It allows for the time between
// reading the clock and the broker's receipt, and for clocks that run at different rates.
func (ls *leases) margin() time.Duration { return ls.cfg.LeaseTTL / 10 }

// plan issues the next statement on leases. One at a time, so no renewal is older than an earlier
// Acquire or Release.
func (ls *leases) plan() {
	if ls.busy != nil {
		return
	}
	if ls.now < ls.retry {
		ls.at(ls.retry)
		return
	}
	cl := ls.next()
	if cl != nil {
		ls.busy = ls.issue(cl)
	}
}

func (ls *leases) next() *Call {
	if len(ls.distrusted) > 0 {
		if !ls.lows.cleared {
			return ls.lows.clearCall()
		}
		return ask(&statement.Release{Leases: ls.distrusted})
	}
	if ls.stopping && ls.allIdle() {
		if cl := ls.lows.call(); cl != nil {
			return cl
		}
		return ls.releaseCall(true)
	}
	if cl := ls.witness.attestCall(); cl != nil { // doubtful leases are not renewed before
		return cl
	}
	if ls.held > 0 && ls.renewalDue() {
		return ls.renewCall()
	}
	if ls.now >= ls.beatAt && !ls.stopping {
		return ask(&statement.Heartbeat{Read: ls.numbers.read})
	}
	for _, next := range [...]func() *Call{ls.lows.call, ls.yieldedCall, ls.clearCall, ls.acquireCall, ls.witness.call} {
		if cl := next(); cl != nil {
			return cl
		}
	}
	if ls.held > 0 {
		if soon, wanted := ls.newsAt(); wanted && ls.now >= soon {
			return ls.renewCall()
		} else if wanted {
			ls.at(soon)
		}
		ls.at(ls.renewAt)
	}
	if !ls.stopping {
		ls.at(ls.beatAt)
	}
	return nil
}

// newsAt returns when to renew before the renewal is due, if news of operators' changes are wanted. A
// shard whose parked events are being loaded is loaded to the end first: one change after the other would
// keep it from being read.
func (ls *leases) newsAt() (at time.Duration, wanted bool) {
	switch {
	case ls.replaysAwaited:
		return ls.renewedAt + ls.cfg.LeaseTTL/100, true
	case ls.told && !ls.loading.underWay():
		return ls.renewedAt + max(ls.cfg.LeaseTTL/100, newsInterval), true
	}
	return 0, false
}

// freed asks soon how many relays are left, and for shards, since another relay has given some back.
func (ls *leases) freed() {
	ls.beatAt = min(ls.beatAt, max(ls.now, ls.beatAsked+newsInterval))
	ls.acquireAt = min(ls.acquireAt, max(ls.now, ls.acquireAsked+newsInterval))
}

// yieldedCall gives back the yielding shards that are idle.
func (ls *leases) yieldedCall() *Call {
	if !ls.yielding {
		return nil
	}
	return ls.releaseCall(false)
}

// acquireCall asks for the shards that the relay lacks of its share.
func (ls *leases) acquireCall() *Call {
	want := ls.share() - ls.held
	if ls.live == 0 || want <= 0 || ls.stopping {
		return nil
	}
	if ls.now < ls.acquireAt {
		ls.at(ls.acquireAt)
		return nil
	}
	return ask(&statement.Acquire{Limit: want})
}

// renewalDue tells whether the leases are to be renewed: now, or soon and together with a heartbeat.
func (ls *leases) renewalDue() bool {
	together := ls.now >= ls.beatAt && !ls.stopping && !ls.beatsApart
	return ls.now >= ls.renewAt || together && ls.now+ls.cfg.LeaseTTL/12 >= ls.renewAt
}

// renewCall renews the leases. A renewal that is due takes along the heartbeat, which is due at about
// the same time, and the poll of an idle relay.
func (ls *leases) renewCall() *Call {
	ls.told = false
	s := &renew{early: !ls.renewalDue()}
	if !s.early && !ls.stopping && !ls.beatsApart {
		s.Beat, s.beats = &statement.Heartbeat{Read: ls.numbers.read}, true
		if s.poll = ls.reader.join(); s.poll != nil {
			s.Poll = &s.poll.fetch().Fetch
		}
	}
	cl := ask(s)
	for _, sh := range ls.shards {
		if sh != nil {
			cl.shards = append(cl.shards, sh)
			s.Leases = append(s.Leases, sh.lease())
			s.awaited = append(s.awaited, sh.replaysAwaited)
		}
	}
	return cl
}

// releaseCall gives back the yielding shards that are idle. With forget, when the relay ends, the
// statement also takes the relay off the list of relays, even without a shard.
func (ls *leases) releaseCall(forget bool) *Call {
	s := &statement.Release{Forget: forget}
	cl := ask(s)
	waiting := false
	for _, sh := range ls.shards {
		switch {
		case sh == nil || !sh.yielding:
		case !sh.idle():
			waiting = true
		default:
			sh.leaving, waiting = true, true
			cl.shards = append(cl.shards, sh)
			s.Leases = append(s.Leases, sh.lease())
		}
	}
	ls.yielding = waiting
	if len(s.Leases) == 0 && !forget {
		return nil
	}
	return cl
}

func (ls *leases) reply(cl *Call) {
	ls.busy = nil
	if cl.Err != nil {
		ls.failed(cl)
		return
	}
	ls.fails = 0
	switch s := cl.Statement.(type) {
	case *renew:
		ls.health.renewed = ls.now
		ls.renewedAt = ls.now
		if !s.early {
			ls.renewAt, ls.lows.wanted = ls.after(cl.issued), true
		}
		if cl.issued < ls.witness.stoodAt {
			ls.renewAt = 0
		}
		ls.renewed(cl)
		if s.Beat != nil {
			ls.beaten(s.Beat, cl.issued)
		}
	case *statement.Heartbeat:
		ls.beaten(s, cl.issued)
	case *statement.Acquire:
		ls.acquired = true
		ls.acquireAsked, ls.acquireAt = cl.issued, cl.issued+ls.cfg.LeaseTTL/10
		ls.granted(s.Grants, cl.issued)
	case *statement.Release:
		ls.distrusted = slices.DeleteFunc(ls.distrusted, func(lease outbox.Lease) bool { return slices.Contains(s.Leases, lease) })
		ls.released(cl.shards, s.Forget)
	case *statement.ClearRewind:
		cl.shards[0].clear = false
	case *statement.KeepLow:
		ls.lows.reply(cl)
	default:
		ls.witness.reply(cl)
	}
}

// beaten takes a heartbeat over.
func (ls *leases) beaten(s *statement.Heartbeat, issued time.Duration) {
	ls.beatAsked, ls.beatAt, ls.beatsApart = issued, ls.after(issued), false
	ls.reports.beat()
	ls.identified(s.Identity)
	ls.numbers.checked(s)
	if s.Live != ls.live {
		ls.live = max(s.Live, 1)
		ls.acquireAt = 0
	}
	ls.yieldSurplus()
	ls.witness.beat()
}

// identified compares the identity of the database with the last identity. A different database may
// have lost the latest commits.
func (ls *leases) identified(identity string) {
	if identity == "" || identity == ls.identity {
		return
	}
	before := ls.identity
	ls.identity = identity
	if before == "" {
		return
	}
	ls.note(slog.LevelWarn, "database is another one than before, as after a fail-over, a restore or a crash: reading everything again",
		slog.String("before", before), slog.String("now", identity))
	ls.beginAnew()
}

// beginAnew forgets all that was read, since the database has lost commits, of events, marks and
// leases. The database may give out the IDs of events in memory again, and IDs below the read
// positions. Floors of writers found by lost events mean nothing. The shards are given back and
// acquired again, so that the fence stops statements under way. Events that were delivered and are
// queued again are sent again, and the inboxes drop the copies.
func (ls *leases) beginAnew() {
	ls.health.failedOver = ls.now
	for _, sh := range ls.shards {
		if sh != nil && !sh.leaving {
			ls.distrusted, ls.lows.cleared = append(ls.distrusted, sh.lease()), false
			ls.abrupt |= 1 << sh.no
			ls.drop(sh)
		}
	}
	ls.late.reset()
	ls.numbers.read = 0
	ls.acquireAt = 0
}

// contradicts tells whether an event in memory has the Seq of a different, newer event: the
// database has lost the event in memory. A row may show the loss before the next heartbeat asks for
// the identity of the database, or on a store without identities.
func (ls *leases) contradicts(known *Entry, row *outbox.Queued) bool {
	if known == nil || known.Missing || row.Missing || known.ID == row.ID {
		return false
	}
	ls.note(slog.LevelError, "database has lost committed events, and given out their IDs again: reading everything again",
		slog.Int("shard", row.Shard), slog.Int64("seq", row.Seq),
		slog.String("lost_dispatch_id", known.ID.String()), slog.String("dispatch_id", row.ID.String()))
	ls.beginAnew()
	return true
}

func (ls *leases) failed(cl *Call) {
	if ls.witness.failed(cl) {
		return
	}
	if s, ok := cl.Statement.(*renew); ok && s.beats {
		ls.beatsApart = true // what holds up heartbeats must not hold up the leases
	} else if ok && s.early {
		ls.told = true
	}
	ls.fails++
	ls.retry = ls.now + min(ls.pause(ls.fails), ls.cfg.LeaseTTL/10)
	s, ok := cl.Statement.(*statement.Release)
	if !ok {
		return
	}
	if s.Forget { // a stopping relay does not wait for a database: leases run out
		ls.stopped = true
		return
	}
	for _, sh := range cl.shards {
		sh.leaving = false
	}
}

// renewed extends the leases that the database has extended, counted from before the statement was
// issued, and drops all other shards.
func (ls *leases) renewed(cl *Call) {
	s := cl.Statement.(*renew)
	ls.replaysAwaited = false
	for n, sh := range cl.shards {
		if sh.gone {
			continue
		}
		i := slices.IndexFunc(s.Renewals, func(r outbox.Renewal) bool { return r.Lease == sh.lease() })
		if i < 0 {
			ls.lose(sh, "renewal")
			continue
		}
		if ls.witness.vouches(sh, cl.issued) {
			sh.until = cl.issued + ls.cfg.LeaseTTL - ls.margin()
			for e := sh.held.pop(); e != nil; e = sh.held.pop() {
				ls.keys.place(e)
			}
		}
		if r := s.Renewals[i]; r.Rewind && !sh.yielding && (r.Ticket != sh.ticket || sh.phase == phaseReady && !sh.clear) {
			ls.rewind(sh, r)
		}
		if sh.open() {
			ls.learnReplays(sh, s.awaited[n]) // otherwise loading.open learns them
		}
	}
}

// granted takes shards over, and tells in one note which of them came from a relay that crashed.
func (ls *leases) granted(grants []outbox.Grant, issued time.Duration) {
	var abrupt []int
	for _, g := range grants {
		if g.Shard < 0 || g.Shard >= idgen.Shards || ls.shards[g.Shard] != nil {
			ls.note(slog.LevelError, "store granted a shard that is held or does not exist", slog.Int("shard", g.Shard))
		} else if ls.take(g, issued) {
			abrupt = append(abrupt, g.Shard)
		}
	}
	if abrupt != nil {
		ls.note(slog.LevelWarn, "shards taken over from a relay that did not give them back", slog.Any("shards", abrupt))
	}
}

// take takes a shard over, and tells whether its owner before did not give it back. Healing, loading
// and the first fetch of the shard begin after the lease.
func (ls *leases) take(g outbox.Grant, issued time.Duration) (abrupt bool) {
	sh := &shardState{
		no:         g.Shard,
		shardLease: shardLease{epoch: g.Epoch, until: issued + ls.cfg.LeaseTTL - ls.margin()},
		shardEvents: shardEvents{
			index:  make(map[int64]*Entry),
			parked: make(map[int64]*Entry),
			lines:  make(map[string]*keyLine),
		},
	}
	sh.more, sh.replaysKnown = true, g.Ticket
	if g.History == ls.identity {
		sh.resume(g.Low, g.Tail)
	}
	abrupt = g.Abrupt || ls.abrupt&(1<<g.Shard) != 0
	ls.abrupt &^= 1 << g.Shard
	if abrupt {
		sh.redeliver = ls.cfg.Window
	}
	ls.note(slog.LevelDebug, "shard acquired", slog.Int("shard", sh.no), slog.Int64("epoch", sh.epoch), slog.Bool("abrupt", abrupt))
	ls.shards[sh.no] = sh
	ls.held++
	ls.witness.stale = true
	if ls.held == 1 {
		ls.renewAt = issued + ls.cfg.LeaseTTL/3
	}
	ls.parking.mark(sh)
	if ls.stopping {
		ls.yield(sh)
	}
	return abrupt
}

// yieldSurplus begins to give back the shards beyond the fair share, the emptiest first.
func (ls *leases) yieldSurplus() {
	staying := make([]*shardState, 0, idgen.Shards)
	for _, sh := range ls.shards {
		if sh != nil && !sh.yielding {
			staying = append(staying, sh)
		}
	}
	surplus := len(staying) - ls.share()
	if surplus <= 0 {
		return
	}
	slices.SortStableFunc(staying, func(a, b *shardState) int { return len(a.index) - len(b.index) })
	for _, sh := range staying[:surplus] {
		ls.yield(sh)
	}
	ls.note(slog.LevelInfo, "giving shards back to share them", slog.Int("shards", surplus), slog.Int("relays", ls.live))
}

// yield stops sending from sh, which can be given back once idle. Unsent events are forgotten; the
// database has them.
func (ls *leases) yield(sh *shardState) {
	if sh.yielding {
		return
	}
	sh.bottom, sh.tail = ls.lows.lowest(sh), ls.lows.tail(sh)
	ls.lows.skipWaiting(sh)
	sh.yielding = true
	ls.yielding, ls.lows.wanted = true, true
	sh.phase, sh.loaded, sh.rewindTo, sh.clear = phaseReady, nil, 0, false
	for _, e := range sh.index {
		switch e.state {
		case entryWaiting, entryReady, entryHeld, entryRefused:
			ls.keys.forget(e)
		}
	}
	for _, e := range sh.parked {
		switch e.state {
		case entryWaiting, entryReady, entryHeld, entryRefused:
			ls.keys.forget(e)
		}
	}
	sh.writer.follow, sh.writer.fetch, sh.writer.heal = nil, nil, false // none was begun
	ls.parking.mark(sh)
}

func (ls *leases) released(shards []*shardState, forget bool) {
	for _, sh := range shards {
		if !sh.gone {
			ls.note(slog.LevelDebug, "shard given back", slog.Int("shard", sh.no), slog.Int64("epoch", sh.epoch))
			ls.drop(sh)
		}
	}
	if forget {
		ls.stopped = true
	}
}

// lose drops a shard that another relay owns.
func (ls *leases) lose(sh *shardState, how string) {
	if sh.gone {
		return
	}
	ls.note(slog.LevelWarn, "lease lost", slog.Int("shard", sh.no), slog.Int64("epoch", sh.epoch),
		slog.String("found_by", how), slog.Int("in_flight", sh.inflight), slog.Int("unmarked", sh.marking))
	ls.drop(sh)
}

// drop forgets a shard. Outcomes of events in flight have no effect any more.
func (ls *leases) drop(sh *shardState) {
	sh.gone = true
	ls.shards[sh.no] = nil
	ls.held--
	ls.parking.pending &^= 1 << sh.no
	ls.routes.forgetShard(sh.no)
	for _, e := range sh.index {
		ls.abandonEntry(e)
	}
	for _, e := range sh.parked {
		ls.abandonEntry(e)
	}
	sh.index, sh.parked, sh.lines, sh.blockedHeads = nil, nil, nil, nil
}

// abandonEntry takes e off the way to a send. The struct is not reused: calls under way may still
// refer to e.
func (ls *leases) abandonEntry(e *Entry) {
	e.unqueue()
	if e.state != entrySending && e.state != entryInBatch {
		ls.keys.uncount(e)
	}
}
