package ops

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/lineage"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// eventPage is one event with all known facts.
type eventPage struct {
	Outbox   string
	ID       uuid.UUID
	Found    *outbox.Found // nil if the outbox does not know the event
	Facts    []fact
	Headers  []fact
	Payload  string
	Clipped  bool
	Timeline []step
	Applied  []application
	// Partly tells that the store has no search, so that a pending or delivered event is known by its
	// history only.
	Partly bool
	// Stalled tells that the event waits for a route that does not work.
	Stalled bool
	Blind   []string // inboxes that do not show applied messages
	Errs    []string

	// Tree is the event with its descendants; nil if no descendant is known.
	Tree *lineage.Node
	// Verdict says how far the event and its descendants are; nil if that is not known.
	Verdict *verdict
	// Missing are the consumers that are expected to have the event and do not have it.
	Missing []missing
	// Edit is the form for the event; nil if the event cannot be edited.
	Edit *editForm
}

// editForm fills in the form that edits an event, or a message of a consumer.
type editForm struct {
	Kind, Source, Consumer string
	ID                     uuid.UUID
	Payload                string
}

// fact is a name and a value.
type fact struct {
	Name, Value, Link string
}

// step is one entry in the history of an event.
type step struct {
	At                         time.Time
	What, Tone, Where, Details string
}

// application is the state of an event at a consumer.
type application struct {
	Inbox string
	inbox.Found
	// Edit is the form for the message; nil if the message cannot be edited.
	Edit *editForm
}

const (
	// mostSteps bounds the attempts that are shown of an event, for each source.
	mostSteps = 100
	// mostPayload is how many bytes of a payload are shown.
	mostPayload = 32 << 10
)

func (h *Handler) event(r *http.Request) (view, error) {
	sources, err := h.outboxNamed(r.PathValue("outbox"))
	if err != nil {
		return view{}, err
	}
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return view{}, &failure{http.StatusBadRequest, "Dispatch ID: want a UUID."}
	}
	return h.eventView(r.Context(), sources[0], id)
}

// message shows the event of a message, as the outbox knows the event, or else as the inboxes do.
func (h *Handler) message(w http.ResponseWriter, r *http.Request) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		h.fail(w, r, &failure{http.StatusBadRequest, "Dispatch ID: want a UUID."})
		return
	}
	for _, s := range h.outboxes {
		if found, _, err := s.find(r.Context(), outbox.Query{IDs: []uuid.UUID{id}, Limit: 1}); err == nil && len(found.Events) > 0 {
			http.Redirect(w, r, h.eventLink(s.Name, id), http.StatusSeeOther)
			return
		}
	}
	h.page(func(r *http.Request) (view, error) { return h.eventView(r.Context(), nil, id) })(w, r)
}

// eventView builds the page of an event; s is nil if no outbox knows the event.
func (h *Handler) eventView(ctx context.Context, s *outboxSource, id uuid.UUID) (view, error) {
	p := &eventPage{ID: id}
	if s != nil {
		p.Outbox = s.Name
		p.ofOutbox(ctx, s)
	}
	for _, in := range h.inboxes {
		p.ofInbox(ctx, in)
		h.offerEdits(p, in)
	}
	if p.Found == nil && len(p.Timeline) == 0 && len(p.Applied) == 0 && len(p.Errs) == 0 {
		return view{}, &failure{http.StatusNotFound, "Nothing here knows this dispatch ID: it may be another one, or retention is over."}
	}
	if p.Found != nil {
		h.describe(p, &p.Found.Record)
		h.offerEdit(p, s)
		p.findRoute(ctx, s)
		h.grow(ctx, p, s)
	}
	slices.SortStableFunc(p.Timeline, func(a, b step) int { return a.At.Compare(b.At) })
	return view{Page: "event", Title: "Event " + short(id), Data: p}, nil
}

// offerEdit fills in the form of an edit of the event.
func (h *Handler) offerEdit(p *eventPage, s *outboxSource) {
	e := p.Found
	state := e.State == outbox.Dead || e.State == outbox.Retrying || e.State == outbox.Discarded
	if s != nil && s.editor != nil && state && h.editable(e.Payload) {
		p.Edit = &editForm{"outbox", s.Name, "", e.ID, string(e.Payload)}
	}
}

// findRoute looks whether the event waits for a route.
func (p *eventPage) findRoute(ctx context.Context, s *outboxSource) {
	if p.Found.State != outbox.PendingState {
		return
	}
	now, err := s.read(ctx)
	if err != nil {
		p.fail(s.Name, err)
	}
	p.Stalled = slices.ContainsFunc(now.Routes, func(r outbox.StalledRoute) bool { return r.Topic == p.Found.Topic })
}

// editable tells whether a form can show a payload unchanged and send it back.
func (h *Handler) editable(payload []byte) bool {
	return h.cfg.Payloads && len(payload) <= mostPayload && utf8.Valid(payload)
}

// offerEdits fills in the edit forms of an inbox's messages. A message has a form only if the name of
// its consumer and the dispatch ID name one message.
func (h *Handler) offerEdits(p *eventPage, s *inboxSource) {
	named := make(map[string]int)
	for i := range p.Applied {
		if m := &p.Applied[i]; m.Inbox == s.Name && m.State != inbox.AppliedState {
			named[m.Consumer]++
		}
	}
	for i := range p.Applied {
		m := &p.Applied[i]
		_, notVerified := m.Metadata[consumer.MetaNotVerified]
		state := slices.Contains(lost, m.State) || m.State == inbox.Discarded
		if m.Inbox == s.Name && s.editor != nil && state && !notVerified && named[m.Consumer] == 1 && h.editable(m.Payload) {
			m.Edit = &editForm{"inbox", s.Name, m.Consumer, m.ID, string(m.Payload)}
		}
	}
}

func (p *eventPage) fail(where string, err error) { p.Errs = append(p.Errs, where+": "+err.Error()) }

func (p *eventPage) add(at time.Time, what, tone, where, details string) {
	if !at.IsZero() {
		p.Timeline = append(p.Timeline, step{at, what, tone, where, details})
	}
}

// ofOutbox reads the event and its history in the outbox.
func (p *eventPage) ofOutbox(ctx context.Context, s *outboxSource) {
	found, partly, err := s.find(ctx, outbox.Query{IDs: []uuid.UUID{p.ID}, Limit: 1, Content: true})
	p.Partly = partly
	if err != nil {
		p.fail(s.Name, err)
	}
	if len(found.Events) > 0 {
		p.Found = &found.Events[0]
		f := p.Found
		p.add(f.WrittenAt, "written", "mute", s.Name, "")
		p.add(f.ParkedAt, "parked", "warn", s.Name, "")
		if f.State == outbox.DeferredState {
			p.add(f.NextAttemptAt, "due", "info", s.Name, "")
		}
		if f.State == outbox.Retrying {
			p.add(f.NextAttemptAt, "next attempt", "info", s.Name, "")
		}
	}
	attempts, err := s.Operator.Attempts(ctx, p.ID, mostSteps)
	if err != nil {
		p.fail(s.Name, err)
	}
	for _, a := range attempts {
		p.add(a.At, word(a.Outcome), stepTone(a.Outcome), at(s.Name, a.Relay), a.Error)
	}
	deliveries, err := s.Operator.Deliveries(ctx, p.ID)
	if err != nil {
		p.fail(s.Name, err)
	}
	for _, d := range deliveries[max(0, len(deliveries)-mostSteps):] {
		p.add(d.At, "confirmed by the broker", "good", at(s.Name, d.Relay), "")
	}
}

// at names a source and one of its relays.
func at(source, relay string) string {
	if relay == "" {
		return source
	}
	return source + " · relay " + relay
}

// stepTone returns the tone of an entry of a history.
func stepTone(outcome string) string {
	switch outcome {
	case "redriven", "replayed", "effect_redriven", "effect_resolved":
		return "info"
	case "discarded", "cancelled", "effect_discarded":
		return "mute"
	case "applied", "confirmed":
		return "good"
	case "dead":
		return "bad"
	}
	return "warn"
}

// ofInbox reads the messages of the event and their history in an inbox.
func (p *eventPage) ofInbox(ctx context.Context, s *inboxSource) {
	found, partly, err := s.find(ctx, inbox.Query{IDs: []uuid.UUID{p.ID}, Limit: perPage, Content: true})
	if partly {
		p.Blind = append(p.Blind, s.Name)
	}
	if err != nil {
		p.fail(s.Name, err)
	}
	for i := range found.Messages {
		m := &found.Messages[i]
		p.Applied = append(p.Applied, application{s.Name, *m, nil})
		what := "parked"
		if m.State == inbox.AppliedState {
			what = "applied"
		}
		p.add(m.Since, what, tone(m.State), s.Name+" · "+m.Consumer, "")
	}
	attempts, err := s.Operator.Attempts(ctx, p.ID, mostSteps)
	if err != nil {
		p.fail(s.Name, err)
	}
	for _, a := range attempts {
		p.add(a.At, word(a.Outcome), stepTone(a.Outcome), s.Name+" · "+a.Consumer, a.Error)
	}
}

// describe adds the facts of an event, and its content if Config.Payloads is set.
func (h *Handler) describe(p *eventPage, e *outbox.Record) {
	facts := []fact{
		{"Topic", e.Topic, h.link("/events", "outbox", p.Outbox, "topic", e.Topic)},
		{"Key", e.Key, h.link("/events", "outbox", p.Outbox, "key", e.Key)},
		{"Type", e.Type, ""},
		{"Producer", e.Producer, ""},
		{"Source", sourceOf(&e.Event), ""},
		{"Correlation ID", e.CorrelationID, h.link("/events", "outbox", p.Outbox, "correlation", e.CorrelationID)},
		{"Trace", e.TraceParent, ""},
		{"Content type", e.ContentType, ""},
		{"Occurred", when(e.OccurredAt), ""},
		{"May be sent again until", when(e.ResendUntil), ""},
	}
	for _, f := range facts {
		if f.Value != "" {
			p.Facts = append(p.Facts, f)
		}
	}
	if n := p.Found.Attempts; n > 0 {
		p.Facts = append(p.Facts, fact{"Attempts", count(n), ""})
	}
	p.Facts = append(p.Facts, fact{"Number in the outbox", count(p.Found.Seq), ""}, fact{"Shard", count(e.Shard), ""})
	if !h.cfg.Payloads {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		p.Headers = append(p.Headers, fact{name, e.Headers[name], ""})
	}
	p.Payload, p.Clipped = readable(e.Payload)
}

func sourceOf(e *transport.Event) string {
	if e.Source == "" {
		return ""
	}
	return e.Source + ", version " + count(e.Version) + ", index " + count(e.Index)
}

// readable returns a payload as text: JSON with indents, other text as it is, and bytes as a dump.
func readable(payload []byte) (text string, clipped bool) {
	var indented bytes.Buffer
	if len(payload) <= mostPayload && json.Indent(&indented, payload, "", "  ") == nil {
		payload = indented.Bytes()
	}
	if clipped = len(payload) > mostPayload; clipped {
		payload = payload[:mostPayload]
		for len(payload) > 0 && !utf8.RuneStart(payload[len(payload)-1]) {
			payload = payload[:len(payload)-1]
		}
		payload = payload[:max(0, len(payload)-1)]
	}
	if utf8.Valid(payload) {
		return string(payload), clipped
	}
	return hex.Dump(payload), clipped
}
