package ops

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// effectStates are the states that the page offers. By default the page shows effects that wait for an
// operator.
var effectStates = []inbox.EffectState{
	inbox.EffectUncertain, inbox.EffectDead, inbox.EffectPending, inbox.EffectDoing, inbox.EffectAnswered, inbox.EffectDone, inbox.EffectDiscarded,
}

// effectsPage lists effects outside the database.
type effectsPage struct {
	Form    url.Values
	States  []inbox.EffectState
	Sources []effectSource
	// Waiting tells that the page shows effects that wait for an operator.
	Waiting bool
	None    bool
}

type effectSource struct {
	Inbox   string
	Ledger  bool
	Effects []effectRow
	Next    string // the address of the next page; "" if the page is the last one
	Err     string
}

type effectRow struct {
	inbox.Effect
	IntentText, ResultText string
	// Open effects can be redriven and resolved, and Alive effects can be discarded.
	Open, Resolvable, Alive bool
}

func (h *Handler) effects(r *http.Request) (view, error) {
	form := r.URL.Query()
	p := effectsPage{Form: form, States: effectStates, None: true}
	f := inbox.EffectFilter{Consumer: form.Get("consumer"), Limit: perPage + 1, States: []inbox.EffectState{inbox.EffectUncertain, inbox.EffectDead}}
	p.Waiting = form.Get("state") == ""
	if state := inbox.EffectState(form.Get("state")); !p.Waiting {
		if !slices.Contains(effectStates, state) {
			return view{}, &failure{http.StatusBadRequest, "State: there is no such state."}
		}
		f.States = []inbox.EffectState{state}
	}
	var err error
	if f.After, _, err = afterOf(form); err != nil {
		return view{}, err
	}
	sources, err := h.inboxNamed(form.Get("inbox"))
	if err != nil {
		return view{}, err
	}
	for _, s := range sources {
		list := effectSource{Inbox: s.Name, Ledger: s.Effects != nil}
		if list.Ledger {
			found, err := s.Effects.List(r.Context(), f)
			if err != nil {
				list.Err = err.Error()
			}
			for i := range found {
				list.Effects = append(list.Effects, h.effectRow(&found[i]))
			}
			if len(found) > perPage {
				list.Effects = list.Effects[:perPage]
				list.Next = h.link("/effects", "inbox", s.Name, "consumer", f.Consumer, "state", form.Get("state"), "after", found[perPage-1].Seq)
			}
			if _, err := s.read(r.Context()); err != nil && list.Err == "" { // the count in the navigation
				list.Err = err.Error()
			}
		}
		p.None = p.None && list.Err == "" && len(list.Effects) == 0
		p.Sources = append(p.Sources, list)
	}
	return view{Page: "effects", Title: "Effects", Data: p}, nil
}

func (h *Handler) effectRow(e *inbox.Effect) effectRow {
	row := effectRow{Effect: *e}
	row.Open = e.State == inbox.EffectUncertain || e.State == inbox.EffectDead
	row.Resolvable = row.Open && e.Result == nil
	row.Alive = row.Open || e.State == inbox.EffectPending || e.State == inbox.EffectAnswered
	if h.cfg.Payloads {
		row.IntentText, _ = readable(e.Intent)
		row.ResultText, _ = readable(e.Result)
	}
	return row
}

// ledger returns the ledger and the key that the form names.
func (h *Handler) ledger(r *request) (Effects, uuid.UUID, error) {
	if r.form.Get("source") == "" {
		return nil, uuid.Nil, &failure{http.StatusBadRequest, "Source: is missing."}
	}
	list, err := h.inboxNamed(r.form.Get("source"))
	if err != nil {
		return nil, uuid.Nil, err
	}
	if list[0].Effects == nil {
		return nil, uuid.Nil, &failure{http.StatusNotFound, "This inbox has no effects."}
	}
	key, err := r.id("key")
	return list[0].Effects, key, err
}

func (h *Handler) redriveEffect(ctx context.Context, r *request) (notice, error) {
	ledger, key, err := h.ledger(r)
	if err != nil {
		return notice{}, err
	}
	ids, err := ledger.Redrive(ctx, inbox.EffectFilter{Keys: []uuid.UUID{key}}, r.noted)
	return oneChanged(len(ids), "The effect is tried again under the same key."), err
}

func (h *Handler) discardEffect(ctx context.Context, r *request) (notice, error) {
	ledger, key, err := h.ledger(r)
	if err != nil {
		return notice{}, err
	}
	ids, err := ledger.Discard(ctx, inbox.EffectFilter{Keys: []uuid.UUID{key}}, r.noted)
	return oneChanged(len(ids), "The effect is discarded."), err
}

// resolveEffect records the result that the user has found on the other side.
func (h *Handler) resolveEffect(ctx context.Context, r *request) (notice, error) {
	ledger, key, err := h.ledger(r)
	if err != nil {
		return notice{}, err
	}
	result := json.RawMessage(r.form.Get("result"))
	if !json.Valid(result) {
		return notice{}, &failure{http.StatusBadRequest, "Result: want JSON, as Do would have returned it."}
	}
	done, err := ledger.Resolve(ctx, key, result, r.noted)
	n := 0
	if done {
		n = 1
	}
	return oneChanged(n, "The result is recorded: the effect is finished without another call."), err
}
