package ops

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// messageStates are the states that the search offers.
var messageStates = []inbox.State{
	inbox.Retrying, inbox.Following, inbox.Dead, inbox.TooOldState, inbox.AlteredState, inbox.Discarded, inbox.AppliedState,
}

// messagesPage lists messages of an inbox.
type messagesPage struct {
	Form    url.Values
	Names   []string
	States  []inbox.State
	Results []messageResults
}

type messageResults struct {
	Inbox    string
	Messages []inbox.Found
	More     bool
	Next     string // the address of the next page; "" if the page is the last one, or the search has no pages
	Paged    bool   // Messages come page by page, the oldest first
	Partly   bool
	Err      string
}

func (h *Handler) messages(r *http.Request) (view, error) {
	form := r.URL.Query()
	sources, err := h.inboxNamed(form.Get("inbox"))
	if err != nil {
		return view{}, err
	}
	p := messagesPage{Form: form, States: messageStates}
	for _, in := range h.inboxes {
		p.Names = append(p.Names, in.Name)
	}
	q := inbox.Query{Consumer: form.Get("consumer"), Topic: form.Get("topic"), Key: form.Get("key"), Error: form.Get("error"), Limit: perPage}
	if state := inbox.State(form.Get("state")); state != "" {
		if !slices.Contains(messageStates, state) {
			return view{}, &failure{http.StatusBadRequest, "State: there is no such state."}
		}
		q.States = []inbox.State{state}
	}
	if text := strings.TrimSpace(form.Get("id")); text != "" {
		if id, err := uuid.Parse(text); err == nil {
			q.IDs = []uuid.UUID{id}
		} else if from, to, ok := prefix(text); ok {
			q.From, q.To = from, to
		} else {
			return view{}, &failure{http.StatusBadRequest, "Dispatch ID: want a UUID, or at least its first four digits."}
		}
	}
	after, paged, err := afterOf(form)
	if err != nil {
		return view{}, err
	}
	// Only parked messages can be listed page by page, behind a number.
	pages := len(q.States) > 0 && q.States[0] != inbox.AppliedState && q.To == uuid.Nil
	for _, s := range sources {
		res := messageResults{Inbox: s.Name, Paged: paged && pages}
		var found inbox.Results
		if res.Paged {
			found, err = s.findParked(r.Context(), q, after)
		} else {
			found, res.Partly, err = s.find(r.Context(), q)
		}
		if err != nil {
			res.Err = err.Error()
		}
		if res.Messages, res.More = found.Messages, found.More; res.More && pages {
			if paged {
				after = found.Messages[len(found.Messages)-1].Seq
			}
			res.Next = h.link("/messages", "inbox", s.Name, "consumer", q.Consumer, "topic", q.Topic, "key", q.Key, "error", q.Error,
				"state", q.States[0], "id", form.Get("id"), "after", after)
		}
		p.Results = append(p.Results, res)
	}
	return view{Page: "messages", Title: "Messages", Data: p}, nil
}

// afterOf returns the number behind which a page of a listing begins, and whether the address has one.
func afterOf(form url.Values) (after int64, given bool, err error) {
	text := form.Get("after")
	if text == "" {
		return 0, false, nil
	}
	if after, err = strconv.ParseInt(text, 10, 64); err != nil {
		return 0, false, &failure{http.StatusBadRequest, "After: want a number."}
	}
	return after, true, nil
}

// find searches for messages. Without a search it looks among parked messages, and returns partly.
func (s *inboxSource) find(ctx context.Context, q inbox.Query) (found inbox.Results, partly bool, err error) {
	if s.search != nil {
		if found, err = s.search.SearchMessages(ctx, q); !errors.Is(err, errors.ErrUnsupported) {
			return found, false, err
		}
	}
	found, err = s.findParked(ctx, q, 0)
	return found, true, err
}

// findParked searches among parked messages, behind the message with the number after.
func (s *inboxSource) findParked(ctx context.Context, q inbox.Query, after int64) (found inbox.Results, err error) {
	if q.From != uuid.Nil || q.To != uuid.Nil {
		return found, errNoSearch
	}
	if slices.Contains(q.States, inbox.AppliedState) {
		return found, nil
	}
	parked, err := s.Operator.ListParked(ctx, inbox.Filter{
		IDs: q.IDs, Consumer: q.Consumer, States: q.States, Topic: q.Topic, Key: q.Key, Error: q.Error, Since: q.Since, Until: q.Until, After: after, Limit: q.Limit,
	})
	for i := range parked {
		p := &parked[i]
		found.Messages = append(found.Messages, inbox.Found{
			Message: p.Message, Consumer: p.Consumer, State: p.State, Seq: p.Seq, Attempts: p.Attempts, Since: p.ParkedAt,
			NextAttemptAt: p.NextAttemptAt, LastError: p.LastError, Reason: p.Reason,
		})
	}
	found.More = len(parked) == q.Limit
	return found, err
}
