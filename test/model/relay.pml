/*
 * Two relays, one shard: leases, fences, and the order of keys.
 *
 * Events 1 and 3 are of one key, event 2 is of another. IDs are taken in the order of
 * writing; writers of one key take turns, others commit when they like, so 1 may appear behind 2.
 * Arrays are counted from 1. Every step below is one statement, one message or one
 * answer, and anything may happen between two of them: a relay that was stopped is one
 * that takes its next step late. Names in brackets are the functions that a step stands for,
 * in package producer or, for a statement, in store/postgres.
 *
 * A rule is taken out by defining its name, NO_FENCE_ON_MARK and so on. docs/model.md
 * says what is modelled and what is not; ./check runs the lot.
 */

/* What may go wrong, and how often. */
#ifndef EXPIRIES
#define EXPIRIES 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef REFUSALS
#define REFUSALS 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef REPLAYS
#define REPLAYS 0
#endif
#ifndef RETURNS
#define RETURNS 0
#endif
#define ENDLESS  255 /* of refusals */
#define ATTEMPTS 2

/* Where an event is in the database. */
#define NONE      0
#define WRITTEN   1 /* its transaction goes on */
#define QUEUED    2
#define RETRYING  3
#define FOLLOWING 4
#define DEAD      5
#define DONE      6

/* Where an event is in the memory of a relay [entryState]. */
#define ABSENT    0
#define READY     1
#define SENT      2 /* on its way to the broker, or its answer is on the way back */
#define CONFIRMED 3 /* mark is to be called, or under way */
#define REFUSED   4 /* park likewise */
#define FOLLOWS   5 /* follow likewise */
#define RESENT    6 /* SENT, from the parked events */
#define RECORDED  7 /* sent is to be called, or under way */
#define FAILED    8 /* retry likewise */

/* How far a relay is with its shard [phase]. */
#define AWAY 0
#define HEAL 1
#define LOAD 2
#define OPEN 3
#define YIELDING 4

/* The database. */
byte row[4], attempts[4];
bit  round[4];
byte owner, epoch;
bit  expired, asked; /* asked: an operator wants the queue to be read again */

/* A statement that is under way although its relay has dropped the shard. */
byte late_op, late_event, late_by, late_epoch;
bit  late_round;

/* What has happened: for the properties only. */
bit arrived[4], was_dead[4], wanted[4];

/* The properties, named for the report. */
bit owned = 1, confirmed = 1, in_order = 1, delivered = 1;

byte expiries = EXPIRIES, crashes = CRASHES, refusals = REFUSALS, losses = LOSSES, replays = REPLAYS, returns = RETURNS;

#define live(e)        (row[e] == RETRYING || row[e] == FOLLOWING)
#define current(who, ep) (owner == who && epoch == ep)

#ifdef NO_EPOCH
#define fence(who, ep) (owner == who)
#else
#define fence(who, ep) current(who, ep)
#endif
#ifdef NO_FENCE_ON_MARK
#define mark_fence(who, ep) (true)
#else
#define mark_fence(who, ep) fence(who, ep)
#endif
#ifdef NO_FENCE_ON_PARK
#define park_fence(who, ep) (true)
#else
#define park_fence(who, ep) fence(who, ep)
#endif
#ifdef NO_ROUND
#define same(e, rd) (true)
#else
#define same(e, rd) (round[e] == rd)
#endif

/* Whoever changes a state owns the shard. Runs that look for what else breaks leave this out. */
inline change(who, ep)
{
#ifdef OWNED_UNCHECKED
	skip
#else
	owned = current(who, ep);
	assert(owned)
#endif
}

/* The statements, as far as they concern this shard. */

inline promote() /* the next of the key becomes its head; there is one other at most */
{
	if
	:: row[1] == FOLLOWING -> row[1] = RETRYING
	:: row[1] != FOLLOWING && row[1] != RETRYING && row[3] == FOLLOWING -> row[3] = RETRYING
	:: else
	fi
}

inline mark(e, rd, who, ep)
{
	if
	:: row[e] == QUEUED && same(e, rd) ->
		change(who, ep);
		confirmed = arrived[e] && !wanted[e];
		assert(confirmed);
		row[e] = DONE
	:: else
	fi
}

inline park(e, rd, who, ep)
{
	if
	:: row[e] == QUEUED && same(e, rd) -> change(who, ep); attempts[e] = 1; row[e] = RETRYING
	:: else
	fi
}

inline follow(e, rd, who, ep)
{
	if
	:: row[e] == QUEUED && same(e, rd) -> change(who, ep); attempts[e] = 0; row[e] = FOLLOWING
	:: else
	fi
}

inline sent(e, who, ep)
{
	if
	:: live(e) ->
		change(who, ep);
		confirmed = arrived[e] && !wanted[e];
		assert(confirmed);
		row[e] = DONE;
		promote()
	:: else
	fi
}

inline retry(e, who, ep)
{
	if
	:: live(e) ->
		change(who, ep);
#ifndef NO_DEAD_LETTERS
		attempts[e]++;
#endif
		if
		:: attempts[e] >= ATTEMPTS -> row[e] = DEAD; was_dead[e] = 1; wanted[e] = 0; promote()
		:: else -> row[e] = RETRYING
		fi
	:: else
	fi
}

/* The broker takes a message: of event 3 never before event 1, unless that is dead. */
inline arrive(e)
{
	in_order = (e != 3 || arrived[3] || arrived[1] || was_dead[1]);
	assert(in_order);
	arrived[e] = 1;
	wanted[e] = 0
}

inline refuse() { refusals = (refusals == ENDLESS -> ENDLESS : refusals - 1) }

/* What a relay holds in memory. */

#define me (_pid + 1)
#define idle(s)   (s == ABSENT || s == READY || s == CONFIRMED)
#define flying(s) (s == SENT || s == RESENT)
#define unmoved   (m[1] == REFUSED || m[1] == FOLLOWS || m[3] == REFUSED || m[3] == FOLLOWS)
#define flowing   (m[1] >= RESENT || m[3] >= RESENT)

/* Nothing is sent when the lease has run out by the relay's own clock, which is behind
 * the database's by a margin [core.send, loop.send, margin]. */
#ifdef NO_CLOCK
#define leased true
#else
#define leased (current(me, ep) && !expired)
#endif

/* Event 3 waits for the confirm of event 1, if that is in memory [keyLine.insert, promote, confirmed]. */
#ifdef NO_WAVES
#define turn3 true
#else
#define turn3 (m[1] == ABSENT || m[1] == CONFIRMED)
#endif

/* A blocked key is sent from the parked events only [promote, takeKeyed]. */
#ifdef NO_BLOCKING
#define blocking false
#else
#define blocking blk
#endif

/* Only the head is sent from there [isHead in Due], or what was read behind it [parkedConfirmed]. */
#ifdef NO_HEAD
#define head3 (live(3) && !flying(m[1]))
#else
#define head3 (row[3] == RETRYING && !live(1) && !flowing || m[1] == RECORDED && live(3))
#endif

/* A message may be marked when it was confirmed. */
#ifdef MARK_BEFORE_CONFIRM
#define markable(s) (s == CONFIRMED || s == SENT)
#else
#define markable(s) (s == CONFIRMED)
#endif

/* What a fetch brings: everything that the relay has not read yet, above its mark and below it, in
 * one snapshot [fetchRanges, look]. CURSOR reads above the mark only, TWO_READS above or below. */
#define highest (seen[3] -> 3 : (seen[2] -> 2 : (seen[1] -> 1 : 0)))
#define fresh(e) (row[e] == QUEUED && m[e] == ABSENT && !seen[e])
#define above(e) (fresh(e) && e > highest)
#define below(e) (fresh(e) && e < highest)

/* The statement sees the queue at one moment, and its answer is taken over later. */
inline see(e, there)
{
	if :: there -> snap[e] = 1 + round[e] :: else fi
}

inline take(e)
{
	if
	:: snap[e] != 0 && m[e] == ABSENT ->
		seen[e] = 1;
		rd[e] = snap[e] - 1;
		if
		:: e != 2 && blocking -> m[e] = FOLLOWS
		:: else -> m[e] = READY
		fi
	:: else
	fi;
	snap[e] = 0
}

inline ignore() /* a read whose answer is of no use any more [byShard] */
{
	reading = 0; snap[1] = 0; snap[2] = 0; snap[3] = 0
}

/* Everything of the key that is not under way follows its head [block]. */
inline block()
{
	blk = 1;
#ifndef NO_BLOCKING
	if :: m[1] == READY -> m[1] = FOLLOWS :: else fi;
	if :: m[3] == READY -> m[3] = FOLLOWS :: else fi
#endif
}

/* What was not sent yet is forgotten by a relay that yields; it is in the database. */
inline rest(e)
{
	if :: m[e] == READY || m[e] == FOLLOWS -> m[e] = ABSENT; rd[e] = 0 :: else fi
}

/* A relay drops the shard [drop], or dies. */
inline forget()
{
	phase = AWAY; ep = 0; blk = 0;
	m[1] = 0; m[2] = 0; m[3] = 0;
	rd[1] = 0; rd[2] = 0; rd[3] = 0;
	seen[1] = 0; seen[2] = 0; seen[3] = 0;
	ignore()
}

/* One of its statements may be with the database then, and come after what others do. */
#define pending(e) (m[e] == CONFIRMED || m[e] == REFUSED && (e == 1 || m[1] == ABSENT) || \
	m[e] == FOLLOWS && (e == 1 || m[1] != FOLLOWS) || m[e] == RECORDED || m[e] == FAILED)

inline leave(e)
{
	late_op = m[e]; late_event = e; late_round = rd[e]; late_by = me; late_epoch = ep;
	forget()
}

/* The broker takes a message, takes it and the answer is lost, or refuses it [outcome]. */
#define ANSWERS(e) \
	:: d_step { m[e] == SENT -> arrive(e); m[e] = CONFIRMED } \
	:: d_step { m[e] == SENT && losses > 0 -> losses--; arrive(e); \
		if :: phase == YIELDING -> m[e] = ABSENT \
		:: phase != YIELDING && e != 2 && blocking -> m[e] = FOLLOWS \
		:: else -> m[e] = READY fi } \
	:: d_step { m[e] == SENT && refusals > 0 && e != 2 -> refuse(); m[e] = REFUSED } \
	:: d_step { m[e] == RESENT -> arrive(e); m[e] = RECORDED } \
	:: d_step { m[e] == RESENT && losses > 0 -> losses--; arrive(e); m[e] = ABSENT } \
	:: d_step { m[e] == RESENT && refusals > 0 -> refuse(); m[e] = FAILED }

/* Statements that change something, and their replies: mark [planMark, markReply], of which the answer
 * may be lost; park, which waits for marks [park, marked, parkReply]; follow [followReply]; sent [sentReply] and
 * retry [retryReply], in this order [laneCall]. */
#define STATEMENTS(e) \
	:: d_step { markable(m[e]) && mark_fence(me, ep) -> mark(e, rd[e], me, ep); m[e] = ABSENT } \
	:: d_step { markable(m[e]) && mark_fence(me, ep) && losses > 0 -> losses--; mark(e, rd[e], me, ep) } \
	:: d_step { m[e] == REFUSED && park_fence(me, ep) && (e == 1 || m[1] == ABSENT) -> \
		park(e, rd[e], me, ep); m[e] = ABSENT; block() } \
	:: d_step { m[e] == FOLLOWS && park_fence(me, ep) && (e == 1 || m[1] != FOLLOWS) -> \
		follow(e, rd[e], me, ep); m[e] = ABSENT } \
	:: d_step { m[e] == RECORDED && park_fence(me, ep) && (e == 1 || m[1] != RECORDED) -> \
		sent(e, me, ep); m[e] = ABSENT } \
	:: d_step { m[e] == FAILED && park_fence(me, ep) && (e == 1 || m[1] != RECORDED) -> \
		retry(e, me, ep); m[e] = ABSENT }

#define LEAVES(e) \
	:: d_step { phase != AWAY && pending(e) && !late_op && !current(me, ep) -> leave(e) } \
	:: d_step { phase != AWAY && pending(e) && !late_op && crashes > 0 -> \
		crashes--; if :: current(me, ep) -> expired = 1 :: else fi; leave(e) }

active [2] proctype Relay()
{
	byte ep, phase;
	byte m[4];
	bit  rd[4], seen[4], blk, reading;
	byte snap[4];

end:	do
	/* leases: Acquire [acquired]; Renew [renewed], also of one that has run out and that nobody
	 * took; a renewal or a fence that finds another owner [lose] */
	:: d_step { phase == AWAY && (owner == 0 || expired) ->
		owner = me; epoch++; expired = 0; ep = epoch; phase = HEAL }
	:: d_step { phase != AWAY && current(me, ep) && expired -> expired = 0 }
	:: d_step { phase != AWAY && !current(me, ep) -> forget() }
	:: d_step { phase != AWAY && crashes > 0 ->
		crashes--; if :: current(me, ep) -> expired = 1 :: else fi; forget() }
	LEAVES(1)
	LEAVES(2)
	LEAVES(3)
	/* gives the shard back when nothing is under way any more [yield, releaseCall, released] */
	:: d_step { phase == OPEN && returns > 0 -> returns--; phase = YIELDING; rest(1); rest(2); rest(3); ignore() }
	:: d_step { phase == YIELDING && !m[1] && !m[2] && !m[3] ->
		if :: current(me, ep) -> owner = 0; expired = 0 :: else fi; forget() }

	/* Heal, then Blocked, each in a later snapshot [healCall, healed, opened, takeBlocked] */
#ifdef NO_HEAL
	:: d_step { phase == HEAL -> phase = LOAD }
#else
	:: d_step { phase == HEAL && park_fence(me, ep) ->
		if :: !live(1) && row[3] == FOLLOWING || row[1] == FOLLOWING -> change(me, ep); promote() :: else fi;
		phase = LOAD }
#endif
	:: d_step { phase == LOAD ->
#ifndef NO_LOAD
		if :: live(1) || live(3) -> block() :: else fi;
#endif
		phase = OPEN }
#ifndef NO_REWIND
	/* an operator's change: read everything again [rewind, reload] */
	:: d_step { phase == OPEN && current(me, ep) && asked ->
		asked = 0; phase = HEAL; seen[1] = 0; seen[2] = 0; seen[3] = 0; ignore() }
#endif

	/* Fetch [fetchCall], and what it brings [takeFetched] */
#ifdef CURSOR
	:: d_step { phase == OPEN && !reading && (above(1) || above(2) || above(3)) ->
		reading = 1; see(1, above(1)); see(2, above(2)); see(3, above(3)) }
#else
#ifdef TWO_READS
	:: d_step { phase == OPEN && !reading && (above(1) || above(2) || above(3)) ->
		reading = 1; see(1, above(1)); see(2, above(2)); see(3, above(3)) }
	:: d_step { phase == OPEN && !reading && (below(1) || below(2)) ->
		reading = 1; see(1, below(1)); see(2, below(2)) }
#else
	:: d_step { phase == OPEN && !reading && (fresh(1) || fresh(2) || fresh(3)) ->
		reading = 1; see(1, fresh(1)); see(2, fresh(2)); see(3, fresh(3)) }
#endif
#endif
	:: d_step { reading && phase != YIELDING -> reading = 0; take(1); take(2); take(3) }

	/* from the queue: keys at once, one event of a key [pump, send] */
	:: d_step { m[1] == READY && !flying(m[3]) && leased -> m[1] = SENT }
	:: d_step { m[2] == READY && leased -> m[2] = SENT }
	:: d_step { m[3] == READY && turn3 && leased -> m[3] = SENT }

	/* from the parked events: Due [takeDue, takeHead], FetchParked [parkedReply] */
	:: d_step { phase == OPEN && row[1] == RETRYING && m[1] == ABSENT && !flying(m[3]) && !flowing &&
		m[3] != REFUSED && leased -> block(); m[1] = RESENT }
	:: d_step { phase == OPEN && m[3] == ABSENT && !flying(m[1]) && m[1] != REFUSED && m[1] != FOLLOWS &&
		head3 && leased -> block(); m[3] = RESENT }
#ifndef NO_HEAL
	/* a follower that was moved behind a head that has gone [recheck, parkedReply] */
	:: d_step { phase == OPEN && blk && !flowing && !unmoved && park_fence(me, ep) &&
		(row[1] == FOLLOWING || row[3] == FOLLOWING && !live(1)) -> change(me, ep); promote() }
#endif
	/* nothing of the key is parked any more [emptied, unblock] */
	:: d_step { phase == OPEN && blk && !flowing && !unmoved && !live(1) && !live(3) -> blk = 0 }

	ANSWERS(1)
	ANSWERS(2)
	ANSWERS(3)
	STATEMENTS(1)
	STATEMENTS(2)
	STATEMENTS(3)
	od
}

active proctype Writer1() { row[1] = WRITTEN; row[1] = QUEUED }

#ifdef ONE_KEY
active proctype Writer2() { d_step { row[2] = DONE; arrived[2] = 1 } }
#else
active proctype Writer2() { row[1] != NONE -> row[2] = WRITTEN; row[2] = QUEUED }
#endif

active proctype Writer3() { d_step { row[1] >= QUEUED && row[2] != NONE -> row[3] = QUEUED } }

/* Time: a lease runs out. That of a relay that has died does so by itself. */
active proctype Clock()
{
end:	do
	:: d_step { owner != 0 && !expired && expiries > 0 -> expiries--; expired = 1 }
	od
}

/* Outbox.Replay, which puts delivered events into the queue again. */
active proctype Operator()
{
end:	do
	:: d_step { replays > 0 && row[1] == DONE ->
		replays--; row[1] = QUEUED; round[1] = !round[1]; wanted[1] = 1; asked = 1 }
	od
}

/* The database does a statement that was under way. */
active proctype Backend()
{
end:	do
	:: d_step { late_op != 0 ->
		if
		:: late_op == CONFIRMED && mark_fence(late_by, late_epoch) ->
			mark(late_event, late_round, late_by, late_epoch)
		:: late_op == REFUSED && park_fence(late_by, late_epoch) ->
			park(late_event, late_round, late_by, late_epoch)
		:: late_op == FOLLOWS && park_fence(late_by, late_epoch) ->
			follow(late_event, late_round, late_by, late_epoch)
		:: late_op == RECORDED && park_fence(late_by, late_epoch) ->
			sent(late_event, late_by, late_epoch)
		:: late_op == FAILED && park_fence(late_by, late_epoch) ->
			retry(late_event, late_by, late_epoch)
		:: else
		fi;
		late_op = 0; late_event = 0; late_round = 0; late_by = 0; late_epoch = 0 }
	od
}

/* Where nothing can happen any more, nothing is lost. */
active proctype Drained()
{
	timeout;
	delivered = (row[1] == DONE || row[1] == DEAD) && (row[2] == DONE || row[2] == DEAD) && (row[3] == DONE || row[3] == DEAD) &&
		(arrived[1] || was_dead[1]) && (arrived[2] || was_dead[2]) && (arrived[3] || was_dead[3]) && !wanted[1];
	assert(delivered)
}
