package ops

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

// request is a change that a user asks for.
type request struct {
	form url.Values
	user string
	// reason is the user's own text; noted adds the user's name.
	reason, noted string
}

// action makes a change, and returns its result.
type action func(ctx context.Context, r *request) (notice, error)

// maxReason is how many bytes a reason and the name of the user may have together.
const maxReason = 1 << 10

// change returns the handler of a change. The handler requires the role and a reason, makes and logs the
// change, and goes back to the page of the form.
func (h *Handler) change(name string, act action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who := visitorOf(r.Context())
		if who.role != Operator {
			h.fail(w, r, &failure{http.StatusForbidden, errMayWrite.Error() + "."})
			return
		}
		asked, err := readRequest(r, who.user)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		done, err := act(r.Context(), asked)
		attrs := []any{"change", name, "user", who.user, "reason", asked.reason, "result", done.Text}
		for _, field := range []string{"source", "id", "consumer", "key", "name"} {
			if value := asked.form.Get(field); value != "" {
				attrs = append(attrs, field, value)
			}
		}
		if err != nil {
			h.cfg.Logger.ErrorContext(r.Context(), "change by the dashboard failed", append(attrs, "error", err)...)
			h.fail(w, r, shown(err))
			return
		}
		h.cfg.Logger.InfoContext(r.Context(), "change by the dashboard", attrs...)
		h.forget()
		if done.next != nil {
			h.render(w, r, http.StatusOK, view{Page: "working", Title: upper(done.Text), Data: done.next})
			return
		}
		raw, err := json.Marshal(done)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		h.setCookie(w, r, noticeCookie, base64.RawURLEncoding.EncodeToString(raw), 60)
		h.back(w, r)
	}
}

// shown returns the error that the user sees: an operator needs the error of the database.
func shown(err error) error {
	if _, ok := errors.AsType[*failure](err); ok {
		return err
	}
	return &failure{http.StatusBadGateway, err.Error()}
}

// forget lets the next look read every state.
func (h *Handler) forget() {
	for _, s := range h.outboxes {
		s.forget()
	}
	for _, s := range h.inboxes {
		s.forget()
	}
}

func readRequest(r *http.Request, user string) (*request, error) {
	if err := r.ParseForm(); err != nil {
		return nil, &failure{http.StatusBadRequest, "The form cannot be read."}
	}
	asked := &request{form: r.PostForm, user: user, reason: strings.TrimSpace(r.PostForm.Get("reason"))}
	asked.noted = asked.reason + " (by " + user + ")"
	switch {
	case asked.reason == "":
		return nil, &failure{http.StatusBadRequest, "Reason: is required."}
	case len(asked.noted) > maxReason:
		return nil, &failure{http.StatusBadRequest, fmt.Sprintf("Reason: has %d bytes, at most %d with your name.", len(asked.noted), maxReason)}
	case !utf8.ValidString(asked.reason) || strings.ContainsRune(asked.reason, 0):
		return nil, &failure{http.StatusBadRequest, "Reason: is not valid UTF-8 without NUL."}
	}
	return asked, nil
}

// id returns the dispatch ID in a field of the form.
func (r *request) id(field string) (uuid.UUID, error) {
	id, err := uuid.Parse(r.form.Get(field))
	if err != nil {
		return id, &failure{http.StatusBadRequest, upper(field) + ": want a UUID."}
	}
	return id, nil
}

// letterBox returns the place of dead letters that the form names.
func (h *Handler) letterBox(r *request) (letters, error) {
	name := r.form.Get("source")
	if name == "" {
		return nil, &failure{http.StatusBadRequest, "Source: is missing."}
	}
	if r.form.Get("kind") == "inbox" {
		list, err := h.inboxNamed(name)
		if err != nil {
			return nil, err
		}
		return list[0], nil
	}
	list, err := h.outboxNamed(name)
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// editDead writes an edited copy of an event or of a message. A browser sends the ends of lines as CR
// and LF.
func (h *Handler) editDead(ctx context.Context, r *request) (notice, error) {
	edit, err := h.editor(r)
	if err != nil {
		return notice{}, err
	}
	id, err := r.id("id")
	if err != nil {
		return notice{}, err
	}
	if !h.cfg.Payloads || edit == nil || !r.form.Has("payload") {
		return notice{}, &failure{http.StatusForbidden, "Payload: can be edited only where payloads are shown."}
	}
	done, err := edit(ctx, id, []byte(strings.ReplaceAll(r.form.Get("payload"), "\r\n", "\n")))
	if errors.Is(err, producer.ErrNotEditable) || errors.Is(err, consumer.ErrNotEditable) {
		return notice{}, &failure{http.StatusConflict, upper(err.Error()) + "."}
	}
	return notice{Text: done}, err
}

// editor returns a function that edits an event or a message of the source that the form names, and
// returns the result in words; nil if the source cannot be edited.
func (h *Handler) editor(r *request) (func(ctx context.Context, id uuid.UUID, payload []byte) (string, error), error) {
	box, err := h.letterBox(r)
	if err != nil {
		return nil, err
	}
	if s, is := box.(*inboxSource); is && s.editor != nil {
		return func(ctx context.Context, id uuid.UUID, payload []byte) (string, error) {
			copied, err := s.editor.Edit(ctx, r.form.Get("consumer"), id, r.noted, func(c *consumer.Content) error {
				c.Payload = payload
				return nil
			})
			return "The edited copy " + copied.String() + " will be handled instead; the message is discarded.", err
		}, nil
	}
	if s, is := box.(*outboxSource); is && s.editor != nil {
		return func(ctx context.Context, id uuid.UUID, payload []byte) (string, error) {
			copied, err := s.editor.Edit(ctx, id, r.noted, func(c *producer.Content) error {
				c.Payload = payload
				return nil
			})
			return "The edited copy " + copied.String() + " will be sent instead; the event is discarded.", err
		}, nil
	}
	return nil, nil
}

// outboxOf returns the outbox that the form names.
func (h *Handler) outboxOf(r *request) (*outboxSource, error) {
	if r.form.Get("source") == "" {
		return nil, &failure{http.StatusBadRequest, "Source: is missing."}
	}
	list, err := h.outboxNamed(r.form.Get("source"))
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// eventOf returns the outbox and the dispatch ID that the form names.
func (h *Handler) eventOf(r *request) (*outboxSource, uuid.UUID, error) {
	s, err := h.outboxOf(r)
	if err != nil {
		return nil, uuid.Nil, err
	}
	id, err := r.id("id")
	return s, id, err
}

func (h *Handler) cancelDeferred(ctx context.Context, r *request) (notice, error) {
	s, id, err := h.eventOf(r)
	if err != nil {
		return notice{}, err
	}
	ids, err := s.Operator.Cancel(ctx, r.noted, id)
	return oneChanged(len(ids), "The event is cancelled, and will not be sent."), err
}

func (h *Handler) moveDeferred(ctx context.Context, r *request) (notice, error) {
	s, id, err := h.eventOf(r)
	if err != nil {
		return notice{}, err
	}
	to, err := moment("At", r.form.Get("at"))
	if err != nil {
		return notice{}, err
	}
	if to.IsZero() {
		return notice{}, &failure{http.StatusBadRequest, "At: is required."}
	}
	ids, err := s.Operator.Reschedule(ctx, to, id)
	return oneChanged(len(ids), "The event is due at "+to.UTC().Format("2006-01-02 15:04:05 UTC")+"."), err
}

// oneChanged is the result of the change of one row.
func oneChanged(n int, done string) notice {
	if n > 0 {
		return notice{Text: done}
	}
	return notice{Text: "Nothing was changed: the state does not allow it any more. Somebody else may have changed it.", Bad: true}
}

// until returns the end of a pause: a time, or after some minutes; zero for none.
func until(form url.Values) (time.Time, error) {
	if period := form.Get("for"); period != "" {
		d, err := time.ParseDuration(period)
		if err != nil || d <= 0 {
			return time.Time{}, &failure{http.StatusBadRequest, "For: want a duration such as 30m."}
		}
		return time.Now().Add(d), nil
	}
	return moment("Until", form.Get("until"))
}
