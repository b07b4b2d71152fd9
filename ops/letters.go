package ops

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// letter is a dead event, or a message that waits for an operator.
type letter struct {
	ID       uuid.UUID
	Consumer string // "" for an event
	State    string
	Topic    string
	Key      string
	Attempts int
	Since    time.Time
	Error    string
}

// counted are dead letters with the same error.
type counted struct {
	letter // an example, with Since of the oldest letter
	count  int64
	newest time.Time
}

// letters is an outbox or an inbox as a place of dead letters.
type letters interface {
	// causes counts the dead letters by error, the most frequent first, at most mostCauses. Without a
	// search, causes returns the oldest letters one by one.
	causes(ctx context.Context) ([]counted, error)
	// walk calls yield with most dead letters at most, until yield returns false. A topic and a part of
	// the error select letters, unless they are "".
	walk(ctx context.Context, topic, part string, most int, yield func(*letter) bool) error
	// byID reads one event or message in any state; nil if there is none.
	byID(ctx context.Context, id uuid.UUID, consumer string) (*letter, error)
	redrive(ctx context.Context, s selected, reason string) ([]uuid.UUID, error)
	discard(ctx context.Context, s selected, reason string) ([]uuid.UUID, error)
}

// selected are letters in one state. A letter in another state is not changed.
type selected struct {
	ids             []uuid.UUID
	state, consumer string
	force           bool
}

// batch is how many dead letters one call reads or changes.
const batch = 100

func ofEvent(f *outbox.Found) *letter {
	return &letter{ID: f.ID, State: string(f.State), Topic: f.Topic, Key: f.Key, Attempts: f.Attempts, Since: f.ParkedAt, Error: f.LastError}
}

func (s *outboxSource) causes(ctx context.Context) ([]counted, error) {
	if s.search == nil {
		return each(ctx, s)
	}
	found, err := s.search.Causes(ctx, outbox.Filter{States: []outbox.State{outbox.Dead}, Limit: mostCauses})
	if errors.Is(err, errors.ErrUnsupported) {
		return each(ctx, s)
	}
	var list []counted
	for _, c := range found {
		list = append(list, counted{letter{ID: c.Example, State: string(c.State), Topic: c.Topic, Since: c.First, Error: c.Error}, c.Count, c.Last})
	}
	return list, err
}

// each returns dead letters one by one.
func each(ctx context.Context, s letters) (list []counted, err error) {
	err = s.walk(ctx, "", "", mostCauses, func(l *letter) bool {
		list = append(list, counted{*l, 1, l.Since})
		return true
	})
	return list, err
}

func (s *outboxSource) walk(ctx context.Context, topic, part string, most int, yield func(*letter) bool) error {
	states := []outbox.State{outbox.Dead}
	var before, after int64
	for seen := 0; seen < most; {
		limit := min(batch, most-seen)
		found, more, err := s.deadPage(ctx, outbox.Query{States: states, Topic: topic, Error: part, Before: before, Limit: limit}, &after)
		if err != nil {
			return err
		}
		for i := range found.Events {
			if !yield(ofEvent(&found.Events[i])) {
				return nil
			}
		}
		seen += max(1, len(found.Events))
		if before = found.Before; !more {
			return nil
		}
	}
	return nil
}

// deadPage reads the next dead events: by a search, which leaves the payloads in the database, or behind
// after.
func (s *outboxSource) deadPage(ctx context.Context, q outbox.Query, after *int64) (found outbox.Results, more bool, err error) {
	if s.search != nil {
		if found, err = s.search.Search(ctx, q); !errors.Is(err, errors.ErrUnsupported) {
			return found, found.Before > 0, err
		}
	}
	parked, err := s.Operator.ListParked(ctx, outbox.Filter{States: q.States, Topic: q.Topic, Error: q.Error, After: *after, Limit: q.Limit})
	for i := range parked {
		found.Events, *after = append(found.Events, ofParked(&parked[i])), parked[i].Seq
	}
	return found, len(parked) == q.Limit, err
}

func (s *outboxSource) byID(ctx context.Context, id uuid.UUID, _ string) (*letter, error) {
	found, _, err := s.find(ctx, outbox.Query{IDs: []uuid.UUID{id}, Limit: 1})
	if err != nil || len(found.Events) == 0 {
		return nil, err
	}
	return ofEvent(&found.Events[0]), nil
}

func (s *outboxSource) redrive(ctx context.Context, c selected, reason string) ([]uuid.UUID, error) {
	return s.Operator.Redrive(ctx, c.events(), reason)
}

func (s *outboxSource) discard(ctx context.Context, c selected, reason string) ([]uuid.UUID, error) {
	return s.Operator.Discard(ctx, c.events(), reason)
}

func (c *selected) events() outbox.Filter {
	return outbox.Filter{IDs: c.ids, States: []outbox.State{outbox.State(c.state)}, Force: c.force, Limit: len(c.ids)}
}

func (c *selected) messages() inbox.Filter {
	return inbox.Filter{IDs: c.ids, States: []inbox.State{inbox.State(c.state)}, Consumer: c.consumer, Force: c.force, Limit: len(c.ids)}
}

// lost are the states of messages that wait for an operator.
var lost = []inbox.State{inbox.Dead, inbox.TooOldState, inbox.AlteredState}

func ofMessage(m *inbox.Parked) *letter {
	return &letter{m.ID, m.Consumer, string(m.State), m.Topic, m.Key, m.Attempts, m.ParkedAt, m.LastError}
}

func (s *inboxSource) causes(ctx context.Context) ([]counted, error) {
	if s.search == nil {
		return each(ctx, s)
	}
	found, err := s.search.MessageCauses(ctx, inbox.Filter{States: lost, Limit: mostCauses})
	if errors.Is(err, errors.ErrUnsupported) {
		return each(ctx, s)
	}
	var list []counted
	for _, c := range found {
		list = append(list, counted{letter{ID: c.Example, Consumer: c.Consumer, State: string(c.State), Topic: c.Topic, Since: c.First, Error: c.Error}, c.Count, c.Last})
	}
	return list, err
}

func (s *inboxSource) walk(ctx context.Context, topic, part string, most int, yield func(*letter) bool) error {
	var after int64
	for seen := 0; seen < most; {
		limit := min(batch, most-seen)
		page, err := s.Operator.ListParked(ctx, inbox.Filter{States: lost, Topic: topic, Error: part, After: after, Limit: limit})
		if err != nil {
			return err
		}
		for i := range page {
			after = page[i].Seq
			if !yield(ofMessage(&page[i])) {
				return nil
			}
		}
		if seen += limit; len(page) < limit {
			return nil
		}
	}
	return nil
}

func (s *inboxSource) byID(ctx context.Context, id uuid.UUID, consumer string) (*letter, error) {
	page, err := s.Operator.ListParked(ctx, inbox.Filter{IDs: []uuid.UUID{id}, Consumer: consumer, Limit: 1})
	if err != nil || len(page) == 0 {
		return nil, err
	}
	return ofMessage(&page[0]), nil
}

func (s *inboxSource) redrive(ctx context.Context, c selected, reason string) ([]uuid.UUID, error) {
	return s.Operator.Redrive(ctx, c.messages(), reason)
}

func (s *inboxSource) discard(ctx context.Context, c selected, reason string) ([]uuid.UUID, error) {
	return s.Operator.Discard(ctx, c.messages(), reason)
}

// cause identifies dead letters with the same kind of error.
type cause struct {
	Consumer, State, Topic string
	kind                   string // the error without its varying parts
}

func causeOf(l *letter) cause { return cause{l.Consumer, l.State, l.Topic, kindOf(l.Error)} }

// varying are the parts of errors that differ between letters of one cause: UUIDs, long numbers and
// hexadecimal numbers. Short numbers are codes and ports.
var varying = regexp.MustCompile(`[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]{4,}|[0-9a-f]*[0-9][0-9a-f]{11,}|[0-9]{6,}`)

const gap = "\x00"

func kindOf(text string) string { return varying.ReplaceAllString(text, gap) }

// fixed returns the longest part that all errors of a cause have in common.
func (c *cause) fixed() string {
	return slices.MaxFunc(strings.Split(c.kind, gap), func(a, b string) int { return cmp.Compare(len(a), len(b)) })
}

// causeGroup is a cause with the number of its letters.
type causeGroup struct {
	cause
	Example string
	ID      uuid.UUID // of an example, which names the cause in forms
	Similar bool      // the errors differ in numbers
	Count   int64
	Oldest  time.Time
	Newest  time.Time
	// List is the address of the page that lists the letters.
	List string
}

const (
	// mostCauses is how many errors of a source are counted.
	mostCauses = 500
	// mostGroups is how many causes of a source are shown.
	mostGroups = 50
	// changed is how many letters one request changes.
	changed = 1000
)

// group merges errors of one cause, the most frequent cause first.
func group(list []counted) []*causeGroup {
	byCause := make(map[cause]*causeGroup)
	var groups []*causeGroup
	for i := range list {
		c := &list[i]
		g := byCause[causeOf(&c.letter)]
		if g == nil {
			g = &causeGroup{cause: causeOf(&c.letter), Example: c.Error, ID: c.ID, Oldest: c.Since, Newest: c.newest}
			byCause[g.cause] = g
			groups = append(groups, g)
		}
		g.Count += c.count
		g.Similar = g.Similar || c.Error != g.Example
		if c.Since.Before(g.Oldest) {
			g.Oldest = c.Since
		}
		if c.newest.After(g.Newest) {
			g.Newest = c.newest
		}
	}
	slices.SortStableFunc(groups, func(a, b *causeGroup) int { return cmp.Compare(b.Count, a.Count) })
	return groups[:min(len(groups), mostGroups)]
}

// mostPart is how many bytes of an error select the letters of a cause in an address.
const mostPart = 300

// list returns the address of the page that lists the letters of a cause.
func (h *Handler) list(kind, source string, g *causeGroup) string {
	switch part := text.Clean(g.fixed(), mostPart); {
	case kind == "inbox":
		return h.link("/messages", "inbox", source, "consumer", g.Consumer, "state", g.State, "topic", g.Topic, "error", part)
	case g.Count == 1:
		return h.eventLink(source, g.ID)
	default:
		return h.link("/events", "outbox", source, "state", g.State, "topic", g.Topic, "error", part)
	}
}

// deadPage is all dead letters.
type deadPage struct {
	Sources []*deadSource
	None    bool
}

type deadSource struct {
	Kind, Name string
	Groups     []*causeGroup
	Seen, All  int64 // letters in Groups, and all letters
	Err        string
}

func (h *Handler) dead(r *http.Request) (view, error) {
	ctx, wanted := r.Context(), r.URL.Query().Get("source")
	p := deadPage{None: true}
	var reading sync.WaitGroup
	add := func(kind, name string, s letters, all func() (int64, error)) {
		if wanted != "" && wanted != name {
			return
		}
		d := &deadSource{Kind: kind, Name: name}
		p.Sources = append(p.Sources, d)
		reading.Go(func() { h.deadOf(ctx, d, s, all) })
	}
	for _, s := range h.outboxes {
		add("outbox", s.Name, s, func() (int64, error) {
			now, err := s.read(ctx)
			return now.Stats.Dead, err
		})
	}
	for _, s := range h.inboxes {
		add("inbox", s.Name, s, func() (all int64, err error) {
			now, err := s.read(ctx)
			for _, c := range now.Consumers {
				all += c.Stats.Dead + c.Stats.TooOld + c.Stats.Altered
			}
			return all, err
		})
	}
	reading.Wait()
	for _, d := range p.Sources {
		p.None = p.None && d.Err == "" && d.Seen == 0
	}
	return view{Page: "dead", Title: "Dead letters", Data: p}, nil
}

// deadOf reads the dead letters of one source, concurrently with the other sources: 100,000 letters
// take a server as long as the rest of the page.
func (h *Handler) deadOf(ctx context.Context, d *deadSource, s letters, all func() (int64, error)) {
	var err error
	if d.All, err = all(); err == nil {
		var list []counted
		list, err = s.causes(ctx)
		d.Groups = group(list)
	}
	for _, g := range d.Groups {
		d.Seen += g.Count
		g.List = h.list(d.Kind, d.Name, g)
	}
	if err != nil {
		d.Err = err.Error()
	}
}
