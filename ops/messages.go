package ops

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
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
	for _, s := range sources {
		res := messageResults{Inbox: s.Name}
		found, partly, err := s.find(r.Context(), q)
		if err != nil {
			res.Err = err.Error()
		}
		res.Messages, res.More, res.Partly = found.Messages, found.More, partly
		p.Results = append(p.Results, res)
	}
	return view{Page: "messages", Title: "Messages", Data: p}, nil
}

// find searches for messages. Without a search it looks among parked messages, and returns partly.
func (s *inboxSource) find(ctx context.Context, q inbox.Query) (found inbox.Results, partly bool, err error) {
	if s.search != nil {
		if found, err = s.search.SearchMessages(ctx, q); !errors.Is(err, errors.ErrUnsupported) {
			return found, false, err
		}
	}
	found, err = s.findParked(ctx, q)
	return found, true, err
}

// findParked searches among parked messages.
func (s *inboxSource) findParked(ctx context.Context, q inbox.Query) (found inbox.Results, err error) {
	if q.From != uuid.Nil || q.To != uuid.Nil {
		return found, errNoSearch
	}
	if slices.Contains(q.States, inbox.AppliedState) {
		return found, nil
	}
	parked, err := s.Operator.ListParked(ctx, inbox.Filter{
		IDs: q.IDs, Consumer: q.Consumer, States: q.States, Topic: q.Topic, Key: q.Key, Error: q.Error, Since: q.Since, Until: q.Until, Limit: q.Limit,
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
