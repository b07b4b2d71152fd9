package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

const (
	// maxSuspects is how many suspects of one sort gather before they are looked up.
	maxSuspects = 20_000
	// lookup is how many dispatch IDs one statement looks up.
	lookup = 1000
)

// pair is a dispatch ID and the index of a consumer that claimed the ID, or should have.
type pair struct {
	consumer int
	id       uuid.UUID
}

// candidate is the reason why a pair is looked up.
type candidate struct {
	event  bool // an outbox has the event, and the consumer expects it
	outbox *outbox
}

func (r *run) settleIfMany(ctx context.Context) error {
	if len(r.events) >= maxSuspects {
		if err := r.settleEvents(ctx); err != nil {
			return err
		}
	}
	if len(r.messages) >= maxSuspects {
		return r.settleMessages(ctx)
	}
	return nil
}

// settleEvents reports the suspect events whose state has not changed since.
func (r *run) settleEvents(ctx context.Context) error {
	for _, o := range r.outboxes {
		mine := slices.DeleteFunc(slices.Clone(r.events), func(s suspect) bool { return s.outbox != o })
		for part := range slices.Chunk(mine, lookup) {
			found, err := o.Outbox.FindEvents(ctx, idsOf(part), time.Time{})
			if err != nil {
				return fmt.Errorf("outbox %s: %w", o.Name, err)
			}
			states := make(map[uuid.UUID]string, len(found))
			for _, e := range found {
				states[e.ID] = e.State
			}
			r.settlePart(part, func(s *suspect) bool { return states[s.DispatchID] == s.State })
		}
	}
	r.events = r.events[:0]
	return nil
}

// settleMessages reports the parked messages whose state has not changed since.
func (r *run) settleMessages(ctx context.Context) error {
	for _, c := range r.consumers {
		mine := slices.DeleteFunc(slices.Clone(r.messages), func(s suspect) bool { return s.consumer != c })
		for part := range slices.Chunk(mine, lookup) {
			found, err := c.inbox.Inbox.FindClaims(ctx, c.ID, idsOf(part))
			if err != nil {
				return fmt.Errorf("inbox %s: %w", c.inbox.Name, err)
			}
			states := make(map[uuid.UUID][]string, len(found))
			for _, f := range found {
				states[f.ID] = f.States
			}
			r.settlePart(part, func(s *suspect) bool { return slices.Contains(states[s.DispatchID], s.State) })
		}
	}
	r.messages = r.messages[:0]
	return nil
}

func (r *run) settlePart(part []suspect, still func(*suspect) bool) {
	r.progress.Candidates += len(part)
	for i := range part {
		if s := &part[i]; still(s) {
			r.tally(s.Finding)
		}
	}
}

// settlePairs looks the unmatched pairs up, and reports the pairs that are still unmatched.
func (r *run) settlePairs(ctx context.Context) error {
	byConsumer := make([][]uuid.UUID, len(r.consumers))
	for p := range r.pairs {
		byConsumer[p.consumer] = append(byConsumer[p.consumer], p.id)
	}
	for i, ids := range byConsumer {
		// Sorted IDs make the report the same for the same databases, and are read in the order of
		// the index.
		slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
		for part := range slices.Chunk(ids, lookup) {
			if err := r.settleConsumer(ctx, i, part); err != nil {
				return err
			}
		}
	}
	clear(r.pairs)
	return nil
}

// settleConsumer looks up dispatch IDs that one consumer claimed or should have claimed. The claims
// are read before the events: the event of a visible claim was committed before the claim.
func (r *run) settleConsumer(ctx context.Context, index int, ids []uuid.UUID) error {
	c := r.consumers[index]
	r.progress.Candidates += len(ids)
	list, err := c.inbox.Inbox.FindClaims(ctx, c.ID, ids)
	if err != nil {
		return fmt.Errorf("inbox %s: %w", c.inbox.Name, err)
	}
	claims := make(map[uuid.UUID]*FoundClaim, len(list))
	for i := range list {
		claims[list[i].ID] = &list[i]
	}
	ids = slices.DeleteFunc(ids, func(id uuid.UUID) bool { return !r.open(pair{index, id}, claims[id]) })
	if len(ids) == 0 {
		return nil
	}
	var applied, rest []uuid.UUID
	for _, id := range ids {
		if claim := claims[id]; claim != nil && claim.Applied {
			applied = append(applied, id)
		} else {
			rest = append(rest, id)
		}
	}
	events := make(map[uuid.UUID][]located, len(ids))
	if err := r.findEvents(ctx, events, applied, false); err != nil {
		return err
	}
	if err := r.findEvents(ctx, events, rest, true); err != nil {
		return err
	}
	if len(rest) > 0 || len(events) < len(ids) {
		if err := r.refresh(ctx, c); err != nil {
			return err
		}
	}
	for _, id := range ids {
		r.settlePair(pair{index, id}, claims[id], events[id])
	}
	return nil
}

// open tells whether the outboxes must be asked about a pair; claim may be nil.
func (r *run) open(p pair, claim *FoundClaim) bool {
	if claim == nil {
		return r.pairs[p].event
	}
	if claim.Claimed && claim.Applied {
		return true // the content must be compared
	}
	return r.pairs[p].event && len(claim.States) == 0 // readParked reports parked messages
}

// located is an event with its outbox.
type located struct {
	FoundEvent
	outbox *outbox
}

// findEvents looks dispatch IDs up in all outboxes. With recent, events delivered within the grace
// time are marked.
func (r *run) findEvents(ctx context.Context, found map[uuid.UUID][]located, ids []uuid.UUID, recent bool) error {
	if len(ids) == 0 {
		return nil
	}
	for _, o := range r.outboxes {
		var since time.Time
		if recent {
			since = o.span.Now.Add(-r.cfg.Grace)
		}
		list, err := o.Outbox.FindEvents(ctx, ids, since)
		if err != nil {
			return fmt.Errorf("outbox %s: %w", o.Name, err)
		}
		for _, e := range list {
			found[e.ID] = append(found[e.ID], located{e, o})
		}
	}
	return nil
}

// refresh reads again how far the consumer has forgotten and since when the outboxes retain events.
// The times are read after the lookup, so they cover every row that was removed before the lookup.
func (r *run) refresh(ctx context.Context, c *consumer) error {
	registered, err := c.inbox.Inbox.Consumers(ctx)
	if err != nil {
		return fmt.Errorf("inbox %s: %w", c.inbox.Name, err)
	}
	for _, now := range registered {
		if now.ID == c.ID {
			c.ForgottenUntil, c.report.ForgottenUntil = now.ForgottenUntil, now.ForgottenUntil
		}
	}
	for _, o := range r.outboxes {
		span, err := o.Outbox.Span(ctx)
		if err != nil {
			return fmt.Errorf("outbox %s: %w", o.Name, err)
		}
		o.span.RetainedSince, o.report.RetainedSince = span.RetainedSince, span.RetainedSince
	}
	return nil
}

// settlePair judges a pair by its claim, which may be nil, and by the events found for it.
func (r *run) settlePair(p pair, claim *FoundClaim, events []located) {
	c, why := r.consumers[p.consumer], r.pairs[p]
	applied := claim != nil && claim.Claimed && claim.Applied
	switch {
	case len(events) == 0 && applied:
		r.settleUncommitted(c, claim)
	case len(events) == 0:
		r.report.Outside.Removed++
	case !why.event:
		// The event was committed after all: it has another topic, or a time outside the audit.
	case applied:
		for _, e := range events {
			if !claim.Digest.Matches(e.Digest) {
				f := findingOf(DigestDiffers, c, &e)
				f.Since = time.Time{}
				r.tally(f)
			}
		}
	default:
		r.settleUnapplied(c, claim, events)
	}
}

// settleUncommitted judges a claim whose event is in no outbox.
func (r *run) settleUncommitted(c *consumer, claim *FoundClaim) {
	if c.Partial {
		return
	}
	for _, o := range r.outboxes {
		if claim.Stamp.Before(o.span.RetainedSince) { // the event may have been removed
			r.report.Outside.NotRetained++
			return
		}
	}
	r.tally(Finding{
		Kind: NotCommitted, Database: c.inbox.Name, Consumer: c.Name, DispatchID: claim.ID, Created: claim.Stamp,
	})
}

// settleUnapplied judges an event that its consumer has neither applied nor parked.
func (r *run) settleUnapplied(c *consumer, claim *FoundClaim, events []located) {
	for i := range events {
		e := &events[i]
		switch {
		case e.State != Delivered:
			// readUnsent reports it.
		case e.Recent:
			r.report.InFlight++
		case e.CreatedAt.Before(c.ForgottenUntil):
			r.report.Outside.Forgotten++
		case e.CreatedAt.Before(c.RegisteredAt):
			r.report.Outside.BeforeConsumer++
		default:
			f := findingOf(NotApplied, c, e)
			if claim != nil {
				f.Attempts, f.Why = claim.Attempts, claim.LastError
				if claim.Claimed {
					f.State = "claimed" // a claim for a parked message that does not exist
				}
			}
			r.tally(f)
		}
	}
}

func findingOf(kind Kind, c *consumer, e *located) Finding {
	return Finding{
		Kind: kind, Database: e.outbox.Name, Consumer: c.Name, DispatchID: e.ID, Seq: e.Seq,
		Topic: e.Topic, State: e.State, Created: e.CreatedAt,
	}
}
