package ops

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

// perPage is how many events or messages of a source a page lists.
const perPage = 50

// eventStates are the states that the search offers.
var eventStates = []outbox.State{
	outbox.PendingState, outbox.Retrying, outbox.Following, outbox.Dead, outbox.DeferredState, outbox.DeliveredState, outbox.Discarded, outbox.Cancelled,
}

// eventsPage is the result of a search.
type eventsPage struct {
	Form    url.Values
	Names   []string
	States  []outbox.State
	Results []eventResults
	Asked   bool // the form has a search
}

type eventResults struct {
	Outbox string
	Events []outbox.Found
	// By names the meaning of the free text.
	By string
	// Next is the address of the next page, or "".
	Next string
	// Partly tells that the store has no search, so that only parked and deferred events are found.
	Partly bool
	Err    string
}

func (h *Handler) events(r *http.Request) (view, error) {
	form := r.URL.Query()
	sources, err := h.outboxNamed(form.Get("outbox"))
	if err != nil {
		return view{}, err
	}
	q, err := eventQuery(form)
	if err != nil {
		return view{}, err
	}
	p := eventsPage{Form: form, States: eventStates}
	for _, o := range h.outboxes {
		p.Names = append(p.Names, o.Name)
	}
	for name := range form {
		p.Asked = p.Asked || form.Get(name) != "" && name != "outbox" && name != "before"
	}
	for _, s := range sources {
		p.Results = append(p.Results, h.searchEvents(r.Context(), s, q, form))
	}
	return view{Page: "events", Title: "Events", Data: p}, nil
}

// searchEvents searches an outbox, for each meaning of the free text in turn.
func (h *Handler) searchEvents(ctx context.Context, s *outboxSource, q outbox.Query, form url.Values) eventResults {
	res := eventResults{Outbox: s.Name}
	all := meanings(strings.TrimSpace(form.Get("q")), q)
	for _, meant := range all {
		found, partly, err := s.find(ctx, meant.query)
		res.Partly = partly
		if errors.Is(err, errNoSearch) && len(all) > 1 {
			continue
		}
		if err != nil {
			res.Err = err.Error()
			return res
		}
		if name := meant.query.Named; name != "" && len(found.Events) > 0 {
			meant.name = nameOf(name, &found.Events[0])
		}
		if res.Events, res.By = found.Events, meant.name; len(found.Events) > 0 || found.Before > 0 && meant.last {
			if found.Before > 0 {
				next := url.Values{}
				for name := range form {
					if form.Get(name) != "" {
						next.Set(name, form.Get(name))
					}
				}
				next.Set("outbox", s.Name)
				next.Set("before", strconv.FormatInt(found.Before, 10))
				res.Next = h.cfg.Path + "/events?" + next.Encode()
			}
			return res
		}
	}
	return res
}

// eventQuery reads the form of a search.
func eventQuery(form url.Values) (outbox.Query, error) {
	q := outbox.Query{
		Topic: form.Get("topic"), Key: form.Get("key"), CorrelationID: form.Get("correlation"), Source: form.Get("source"), Error: form.Get("error"), Limit: perPage,
	}
	if state := outbox.State(form.Get("state")); state != "" {
		if !slices.Contains(eventStates, state) {
			return q, &failure{http.StatusBadRequest, "State: there is no such state."}
		}
		q.States = []outbox.State{state}
	}
	var err error
	if before := form.Get("before"); before != "" {
		if q.Before, err = strconv.ParseInt(before, 10, 64); err != nil || q.Before < 1 {
			return q, &failure{http.StatusBadRequest, "Before: want a number."}
		}
	}
	if q.Since, err = moment("Since", form.Get("since")); err != nil {
		return q, err
	}
	q.Until, err = moment("Until", form.Get("until"))
	return q, err
}

// moment reads a time as a browser sends it, in UTC, or with a zone.
func moment(field, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, &failure{http.StatusBadRequest, field + ": want a time such as 2026-01-31T12:00, in UTC."}
}

// meaning is one reading of the free text of a search.
type meaning struct {
	name  string
	query outbox.Query
	last  bool
}

// meanings returns the possible meanings of a free text: a dispatch ID, its first digits, a key, a
// source, a correlation ID or a topic. The first meaning with results counts.
func meanings(text string, q outbox.Query) []meaning {
	var list []meaning
	if text == "" {
		return []meaning{{"", q, true}}
	}
	if id, err := uuid.Parse(text); err == nil {
		q.IDs = []uuid.UUID{id}
		return []meaning{{"dispatch ID", q, true}}
	}
	if from, to, ok := prefix(text); ok {
		ids := q
		ids.From, ids.To = from, to
		list = append(list, meaning{"first digits of the dispatch ID", ids, false})
	}
	named := q
	named.Named = text
	list = append(list, meaning{"", named, false})
	if q.Topic == "" {
		topics := q
		topics.Topic = text
		list = append(list, meaning{"topic", topics, false})
	}
	list[len(list)-1].last = true
	return list
}

// nameOf returns the field of a found event that has the value name.
func nameOf(name string, e *outbox.Found) string {
	switch name {
	case e.Key:
		return "key"
	case e.Source:
		return "source"
	}
	return "correlation ID"
}

// prefix returns the first and the last dispatch ID that begin with the digits of a short ID.
func prefix(text string) (from, to uuid.UUID, ok bool) {
	digits := strings.ReplaceAll(strings.ToLower(strings.TrimSuffix(text, "…")), "-", "")
	if len(digits) < 4 || len(digits) > 31 {
		return from, to, false
	}
	low, err := hex.DecodeString(digits + strings.Repeat("0", 32-len(digits)))
	if err != nil {
		return from, to, false
	}
	high, _ := hex.DecodeString(digits + strings.Repeat("f", 32-len(digits))) // its digits were just decoded
	return uuid.UUID(low), uuid.UUID(high), true
}

var errNoSearch = errors.New("the store of this outbox cannot search by first digits, source or correlation ID: look for the whole dispatch ID")

// find searches for events. Without a search it looks among parked and deferred events, and returns
// partly.
func (s *outboxSource) find(ctx context.Context, q outbox.Query) (found outbox.Results, partly bool, err error) {
	if s.search != nil {
		if found, err = s.search.Search(ctx, q); !errors.Is(err, errors.ErrUnsupported) {
			return found, false, err
		}
	}
	found, err = s.findWaiting(ctx, q)
	return found, true, err
}

// findWaiting searches among parked and deferred events.
func (s *outboxSource) findWaiting(ctx context.Context, q outbox.Query) (found outbox.Results, err error) {
	if q.From != uuid.Nil || q.To != uuid.Nil || q.CorrelationID+q.Source != "" {
		return found, errNoSearch
	}
	if q.Named != "" { // the name of a key: no other one is listed
		if q.Key != "" && q.Key != q.Named {
			return found, errNoSearch
		}
		q.Key = q.Named
	}
	parkedStates := slices.DeleteFunc(slices.Clone(q.States), func(st outbox.State) bool {
		return st == outbox.PendingState || st == outbox.DeliveredState || st == outbox.DeferredState
	})
	if len(q.States) == 0 || len(parkedStates) > 0 {
		parked, err := s.Operator.ListParked(ctx, outbox.Filter{
			IDs: q.IDs, States: parkedStates, Topic: q.Topic, Key: q.Key, Error: q.Error, Since: q.Since, Until: q.Until, Limit: q.Limit,
		})
		if err != nil {
			return found, err
		}
		for i := range parked {
			found.Events = append(found.Events, ofParked(&parked[i]))
		}
	}
	if q.Error == "" && (len(q.States) == 0 || slices.Contains(q.States, outbox.DeferredState)) {
		deferred, err := s.Operator.ListDeferred(ctx, outbox.DeferredFilter{IDs: q.IDs, Topic: q.Topic, Key: q.Key, Limit: q.Limit})
		if err != nil {
			return found, err
		}
		for i := range deferred {
			d := &deferred[i]
			found.Events = append(found.Events, outbox.Found{Record: d.Record, Seq: d.Seq, State: outbox.DeferredState, NextAttemptAt: d.DueAt})
		}
	}
	slices.SortFunc(found.Events, func(a, b outbox.Found) int { return int(max(-1, min(1, b.Seq-a.Seq))) })
	return found, nil
}

func ofParked(p *outbox.Parked) outbox.Found {
	return outbox.Found{
		Record: p.Record, Seq: p.Seq, State: p.State, Attempts: p.Attempts, NextAttemptAt: p.NextAttemptAt, ParkedAt: p.ParkedAt,
		LastError: p.LastError, Reason: p.Reason, WrittenAt: p.Stamp, // a deferred event was written earlier
	}
}
