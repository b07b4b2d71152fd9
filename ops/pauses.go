package ops

import (
	"context"
	"errors"
	"net/http"

	"github.com/boxpair/boxpair/store/control"
)

// pausesPage is all pauses in force.
type pausesPage struct {
	Sources []pauseSource
	None    bool
	// Kind and Name fill in the form.
	Source, Kind, Name string
}

type pauseSource struct {
	Kind, Name string
	Pauses     []control.Pause
	Consumers  []string
	Err        string
}

func (h *Handler) pauses(r *http.Request) (view, error) {
	form := r.URL.Query()
	p := pausesPage{None: true, Source: form.Get("source"), Kind: form.Get("kind"), Name: form.Get("name")}
	for _, s := range h.outboxes {
		now, err := s.read(r.Context())
		p.add(pauseSource{Kind: "outbox", Name: s.Name, Pauses: now.Pauses}, err)
	}
	for _, s := range h.inboxes {
		now, err := s.read(r.Context())
		list := pauseSource{Kind: "inbox", Name: s.Name, Pauses: now.Pauses}
		for i := range now.Consumers {
			list.Consumers = append(list.Consumers, now.Consumers[i].Name)
		}
		p.add(list, err)
	}
	return view{Page: "pauses", Title: "Pauses", Data: p}, nil
}

func (p *pausesPage) add(s pauseSource, err error) {
	if err != nil {
		s.Err = err.Error()
	}
	p.None = p.None && err == nil && len(s.Pauses) == 0
	p.Sources = append(p.Sources, s)
}

// pauser returns the outbox or inbox that the form names.
func (h *Handler) pauser(r *request) (Pauser, error) {
	box, err := h.letterBox(r)
	if err != nil {
		return nil, err
	}
	if in, ok := box.(*inboxSource); ok {
		return in.Operator, nil
	}
	o, _ := box.(*outboxSource)
	return o.Operator, nil
}

func (h *Handler) beginPause(ctx context.Context, r *request) (notice, error) {
	s, err := h.pauser(r)
	if err != nil {
		return notice{}, err
	}
	p := control.Pause{Kind: control.Kind(r.form.Get("what")), Name: r.form.Get("name"), Reason: r.reason, By: r.user}
	if p.Until, err = until(r.form); err != nil {
		return notice{}, err
	}
	if err := s.Pause(ctx, p); err != nil {
		if errors.Is(err, control.ErrOver) || p.Validate() != nil || !isStoreError(err) {
			return notice{}, &failure{http.StatusBadRequest, upper(err.Error()) + "."}
		}
		return notice{}, err
	}
	return notice{Text: upper(string(p.Kind)) + " " + p.Name + " is paused. Nothing is lost meanwhile."}, nil
}

// isStoreError tells whether an error wraps one error, as errors of a database do. Errors about the
// fields of a pause are joined.
func isStoreError(err error) bool {
	inner := errors.Unwrap(err)
	_, joined := inner.(interface{ Unwrap() []error })
	return !joined
}

func (h *Handler) endPause(ctx context.Context, r *request) (notice, error) {
	s, err := h.pauser(r)
	if err != nil {
		return notice{}, err
	}
	kind, name := r.form.Get("what"), r.form.Get("name")
	ended, err := s.Resume(ctx, control.Kind(kind), name)
	if !ended {
		return notice{Text: "Nothing was changed: " + kind + " " + name + " is not paused any more.", Bad: true}, err
	}
	return notice{Text: upper(kind) + " " + name + " goes on within a second."}, err
}
