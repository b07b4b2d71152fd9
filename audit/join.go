package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

const (
	// patience is how long an event waits in the window for its last claims. A message without the
	// event's stamp is stamped with its arrival, so its claim comes later in the order.
	patience = time.Minute
	// maxOpen is how many rows of one outbox or consumer the window holds.
	maxOpen = 40_000
)

// stream is the position of a reader in the order of time.
type stream struct {
	head time.Time // stamp of the last row read
	done bool
}

// window holds claims without an event yet, and events that more consumers may claim.
type window struct {
	events map[uuid.UUID]*openEvent
	claims map[claimKey]*openClaim
}

type claimKey struct {
	consumer int
	id       uuid.UUID
}

// openEvent is an event in the window.
type openEvent struct {
	id      uuid.UUID
	digest  transport.Digest
	created time.Time
	awaited uint64 // bit i: consumer i expects the event and has not claimed it yet
}

// openClaim is a claim in the window.
type openClaim struct {
	key    claimKey
	digest transport.Digest
	stamp  time.Time
	met    bool
}

func newWindow() window {
	return window{events: make(map[uuid.UUID]*openEvent), claims: make(map[claimKey]*openClaim)}
}

// join reads the events and the claims of all databases in the order of time.
func (r *run) join(ctx context.Context) error {
	for {
		o, c := r.furthestBehind()
		var err error
		switch {
		case o != nil:
			err = r.readEvents(ctx, o)
		case c != nil:
			err = r.readClaims(ctx, c)
		default:
			return nil
		}
		if err == nil {
			err = r.shrink(ctx)
		}
		if err != nil {
			return err
		}
		r.step(earliest(r.outboxes[0].head, r.cutoff))
	}
}

// furthestBehind returns the outbox or the consumer to read next. On a tie an outbox goes first, so
// that events are in the window when their claims arrive.
func (r *run) furthestBehind() (o *outbox, c *consumer) {
	var behind *stream
	for _, each := range r.outboxes {
		if !each.done && (behind == nil || each.head.Before(behind.head)) {
			behind, o = &each.stream, each
		}
	}
	for _, each := range r.consumers {
		if !each.done && (behind == nil || each.head.Before(behind.head)) {
			behind, o, c = &each.stream, nil, each
		}
	}
	return o, c
}

// readEvents reads a page of events into the window.
func (r *run) readEvents(ctx context.Context, o *outbox) error {
	page, err := o.Outbox.Events(ctx, o.after, r.cfg.PageSize)
	if err != nil {
		return fmt.Errorf("outbox %s: %w", o.Name, err)
	}
	block := make([]openEvent, len(page)) // one allocation per page
	past := true
	for i := range page {
		e := &page[i]
		o.after = e.Seq
		if r.begin.IsZero() {
			r.begin = e.CreatedAt
		}
		if e.CreatedAt.After(o.head) {
			o.head = e.CreatedAt
		}
		past = past && !e.CreatedAt.Before(r.cutoff)
		if !e.CreatedAt.Before(r.cfg.From) && e.CreatedAt.Before(r.cutoff) {
			block[i] = openEvent{id: e.ID, digest: e.Digest, created: e.CreatedAt, awaited: r.expected(e.Topic)}
			r.meetEvent(o, &block[i])
		}
	}
	o.done = past // an empty page ends the outbox too
	r.progress.Events += len(page)
	return nil
}

// meetEvent joins an event with the claims that arrived before it, and leaves the event in the
// window for later claims.
func (r *run) meetEvent(o *outbox, e *openEvent) {
	o.report.Events++
	if e.awaited == 0 && len(r.consumers) > 0 {
		o.report.NobodyExpects++
	}
	for i, c := range r.consumers {
		bit := uint64(1) << i
		if e.awaited&bit != 0 {
			c.report.Expected++
		}
		if len(c.open) == 0 {
			continue
		}
		key := claimKey{i, e.id}
		if claim := r.window.claims[key]; claim != nil {
			claim.met = true
			delete(r.window.claims, key)
			if claim.digest.Matches(e.digest) {
				e.awaited &^= bit
			}
		}
	}
	if r.window.events[e.id] != nil { // the event is in two outboxes
		r.suspectEvent(o, e)
		return
	}
	r.window.events[e.id] = e
	o.open = append(o.open, e)
}

// readClaims reads a page of a consumer's claims and joins them with the events in the window.
func (r *run) readClaims(ctx context.Context, c *consumer) error {
	page, err := c.inbox.Inbox.Claims(ctx, c.ID, c.after, r.cutoff, r.cfg.PageSize)
	if err != nil {
		return fmt.Errorf("inbox %s: %w", c.inbox.Name, err)
	}
	index := r.indexOf(c)
	for i := range page {
		claim := &page[i]
		c.after, c.head = claim.ClaimPlace, claim.Stamp
		e := r.window.events[claim.ID]
		switch {
		case e == nil && claim.Applied:
			open := &openClaim{key: claimKey{index, claim.ID}, digest: claim.Digest, stamp: claim.Stamp}
			r.window.claims[open.key] = open
			c.open = append(c.open, open)
		case e != nil && claim.Applied && claim.Digest.Matches(e.digest):
			e.awaited &^= 1 << index
		}
		// Parked claims and claims with other content stay unmatched, and are looked up.
	}
	c.report.Claims += len(page)
	c.done = len(page) == 0
	r.progress.Claims += len(page)
	return nil
}

func (r *run) indexOf(c *consumer) int {
	for i, each := range r.consumers {
		if each == c {
			return i
		}
	}
	return -1
}

// shrink removes the rows that can no longer find a partner in the window, and the oldest rows beyond
// maxOpen. Once enough unmatched pairs have gathered, shrink looks them up.
func (r *run) shrink(ctx context.Context) error {
	events, claims := r.frontiers()
	for _, o := range r.outboxes {
		n := 0
		for n < len(o.open) && (len(o.open)-n > maxOpen || o.open[n].expired(claims)) {
			delete(r.window.events, o.open[n].id)
			r.suspectEvent(o, o.open[n])
			o.open[n] = nil
			n++
		}
		o.open = o.open[n:]
	}
	for _, c := range r.consumers {
		n := 0
		for n < len(c.open) && (c.open[n].met || len(c.open)-n > maxOpen || c.open[n].stamp.Add(disorder).Before(events)) {
			delete(r.window.claims, c.open[n].key)
			r.suspectClaim(c.open[n])
			c.open[n] = nil
			n++
		}
		c.open = c.open[n:]
	}
	if len(r.pairs) < maxSuspects {
		return nil
	}
	return r.settlePairs(ctx)
}

// expired tells whether all claims of e that the window can see have been read.
func (e *openEvent) expired(claims time.Time) bool {
	if e.awaited != 0 {
		return e.created.Add(patience).Before(claims)
	}
	return e.created.Before(claims)
}

// frontiers returns the times up to which all events, and all claims, have been read.
func (r *run) frontiers() (events, claims time.Time) {
	end := r.cutoff.Add(365 * 24 * time.Hour) // for streams that are read to their end
	events, claims = end, end
	for _, o := range r.outboxes {
		if !o.done {
			events = earliest(events, o.head)
		}
	}
	for _, c := range r.consumers {
		if !c.done {
			claims = earliest(claims, c.head)
		}
	}
	return events, claims
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// suspectEvent schedules a lookup of an event for each consumer that has not claimed it.
func (r *run) suspectEvent(o *outbox, e *openEvent) {
	for i := range r.consumers {
		if e.awaited&(1<<i) != 0 {
			r.pairs[pair{i, e.id}] = candidate{outbox: o, event: true}
		}
	}
}

// suspectClaim schedules a lookup of a claim without an event.
func (r *run) suspectClaim(c *openClaim) {
	key := pair(c.key)
	if _, known := r.pairs[key]; !known && !c.met {
		r.pairs[key] = candidate{}
	}
}
