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

	"github.com/boxpair/boxpair/internal/pace"
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

	seq   int64 // in the order of the source
	shard int   // of an event
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
	// next reads dead letters behind a place, at most limit, and returns the place behind them; 0 is the
	// place before all letters, and the one behind the last letters. c selects letters, unless its fields
	// are "": further letters may be among them.
	next(ctx context.Context, c *cause, at int64, limit int) (list []letter, behind int64, err error)
	// newest returns the number of the newest letter that next may select, if letters that die meanwhile
	// come behind it; otherwise 0.
	newest(ctx context.Context, c *cause) (int64, error)
	// pace returns the pace of many changes, and whether their batches are to have letters of one shard each.
	pace(ctx context.Context) (paced *pace.Batches, apart bool, err error)
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

// batch is how many dead letters one call reads.
const batch = 100

func ofEvent(f *outbox.Found) *letter {
	return &letter{
		ID: f.ID, State: string(f.State), Topic: f.Topic, Key: f.Key, Attempts: f.Attempts, Since: f.ParkedAt, Error: f.LastError, seq: f.Seq, shard: f.Shard,
	}
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
	var at int64
	for {
		page, behind, err := s.next(ctx, &cause{}, at, min(batch, mostCauses-len(list)))
		for i := range page {
			list = append(list, counted{page[i], 1, page[i].Since})
		}
		if at = behind; err != nil || at == 0 || len(list) >= mostCauses {
			return list, err
		}
	}
}

// next reads by a search, which leaves the payloads in the database, the newest events first, or else the
// oldest first.
func (s *outboxSource) next(ctx context.Context, c *cause, at int64, limit int) (list []letter, behind int64, err error) {
	states := []outbox.State{outbox.Dead}
	if s.search != nil {
		found, err := s.search.Search(ctx, outbox.Query{States: states, Topic: c.Topic, Error: c.fixed(), Before: at, Limit: limit})
		if !errors.Is(err, errors.ErrUnsupported) {
			for i := range found.Events {
				list = append(list, *ofEvent(&found.Events[i]))
			}
			return list, found.Before, err
		}
	}
	parked, err := s.Operator.ListParked(ctx, outbox.Filter{States: states, Topic: c.Topic, Error: c.fixed(), After: at, Limit: limit})
	for i := range parked {
		found := ofParked(&parked[i])
		list = append(list, *ofEvent(&found))
	}
	if len(list) == limit {
		behind = list[limit-1].seq
	}
	return list, behind, err
}

func (s *outboxSource) newest(context.Context, *cause) (int64, error) { return 0, nil }

// pace: each change makes the relay load the parked events of the changed shards again, and live events of
// these shards wait.
func (s *outboxSource) pace(ctx context.Context) (*pace.Batches, bool, error) {
	paced, err := pace.BriefChange(func() error {
		_, err := s.Operator.ListParked(ctx, outbox.Filter{IDs: []uuid.UUID{uuid.Max}, Limit: 1})
		return err
	})
	return paced, true, err
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
	return &letter{m.ID, m.Consumer, string(m.State), m.Topic, m.Key, m.Attempts, m.ParkedAt, m.LastError, m.Seq, 0}
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

// next reads the oldest messages first.
func (s *inboxSource) next(ctx context.Context, c *cause, at int64, limit int) (list []letter, behind int64, err error) {
	page, err := s.Operator.ListParked(ctx, inbox.Filter{States: c.messageStates(), Consumer: c.Consumer, Topic: c.Topic, Error: c.fixed(), After: at, Limit: limit})
	for i := range page {
		list = append(list, *ofMessage(&page[i]))
	}
	if len(list) == limit {
		behind = list[limit-1].seq
	}
	return list, behind, err
}

func (s *inboxSource) newest(ctx context.Context, c *cause) (int64, error) {
	if s.search == nil {
		return 0, nil
	}
	found, err := s.search.SearchMessages(ctx, inbox.Query{States: c.messageStates(), Consumer: c.Consumer, Topic: c.Topic, Error: c.fixed(), Limit: 1})
	if errors.Is(err, errors.ErrUnsupported) || err == nil && len(found.Messages) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return found.Messages[0].Seq, nil
}

func (s *inboxSource) pace(context.Context) (*pace.Batches, bool, error) {
	return pace.Change(), false, nil
}

// messageStates are the states of the messages of c.
func (c *cause) messageStates() []inbox.State {
	if c.State == "" {
		return lost
	}
	return []inbox.State{inbox.State(c.State)}
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
	Error                  string // without its varying parts
}

func causeOf(l *letter) cause { return cause{l.Consumer, l.State, l.Topic, kindOf(l.Error)} }

// varying are the parts of errors that differ between letters of one cause: UUIDs, long numbers and
// hexadecimal numbers. Short numbers are codes and ports.
var varying = regexp.MustCompile(`[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]{4,}|[0-9a-f]*[0-9][0-9a-f]{11,}|[0-9]{6,}`)

const gap = "\x00"

func kindOf(text string) string { return varying.ReplaceAllString(text, gap) }

// fixed returns the longest part that all errors of a cause have in common.
func (c *cause) fixed() string {
	return slices.MaxFunc(strings.Split(c.Error, gap), func(a, b string) int { return cmp.Compare(len(a), len(b)) })
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
