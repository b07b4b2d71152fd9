package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

// payments is a service whose provider never answers, and cannot be asked.
type payments struct {
	t        *testing.T
	url      string
	inbox    *consumer.Inbox[*sql.Tx]
	handler  *effects.Handler[*sql.Tx]
	asked    int
	refuse   bool
	finished []string
}

// intent and receipt are secrets that must not be printed.
const (
	intent  = "canary of an intent"
	receipt = "canary of a receipt"
)

func newPayments(t *testing.T) *payments {
	t.Helper()
	path := filepath.Join(t.TempDir(), "payments.db")
	db, err := sqlite.Open(path)
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	_, err = sqlite.Migrate(t.Context(), db, sqlite.Config{})
	ok(t, err)
	store, err := sqlite.New(db, sqlite.Config{})
	ok(t, err)
	s := &payments{t: t, url: "sqlite:" + path}
	s.inbox, err = consumer.New(store, consumer.Config{Service: "payments"})
	ok(t, err)
	s.handler, err = effects.Handle(s.inbox, "charge", effects.Effect[*sql.Tx, string, string]{
		Prepare: func(context.Context, *consumer.Work[*sql.Tx], *message.Message) (string, error) { return intent, nil },
		Do: func(context.Context, uuid.UUID, string) (string, error) {
			s.asked++
			if s.refuse {
				return "", consumer.Reject(effects.NotDone(errors.New("card is refused")))
			}
			return "", errors.New("no answer")
		},
		Finish: func(_ context.Context, _ *consumer.Work[*sql.Tx], _, result string) error {
			s.finished = append(s.finished, result)
			return nil
		},
	}, effects.Config{Handler: consumer.HandlerConfig{Topic: "order.placed"}})
	ok(t, err)
	return s
}

// charge makes an effect for a message, and returns its dispatch ID and its key.
func (s *payments) charge() (id, key string) {
	s.t.Helper()
	event := transport.Event{ID: uuid.New(), Topic: "order.placed", Key: "order 42", Payload: []byte(payload)}
	ok(s.t, s.handler.Consume(event.Message()))
	s.run()
	return event.ID.String(), effects.Key("payments/charge", event.ID).String()
}

func (s *payments) run() {
	s.t.Helper()
	ok(s.t, s.inbox.RunOnce(context.Background()))
}

// effects calls a command about effects, which must succeed, and returns its output.
func (s *payments) effects(args ...string) string {
	s.t.Helper()
	status, out, errs := call(s.t, nil, append([]string{"effects", args[0], "--inbox", s.url}, args[1:]...)...)
	if status != exitOK || errs != "" && errs != "nothing matches the filter\n" && !strings.HasPrefix(errs, "1 of 1 selected were ") {
		s.t.Fatalf("effects %v: %d, %q, %q", args, status, out, errs)
	}
	for _, secret := range []string{payload, intent, receipt} {
		if strings.Contains(out, secret) {
			s.t.Errorf("effects %v prints %q", args, secret)
		}
	}
	return out
}

// shown returns the output of show for one effect.
func (s *payments) shown(key string) entry {
	s.t.Helper()
	var list struct{ Effects []entry }
	ok(s.t, json.Unmarshal([]byte(s.effects("show", "--effect", key, "-o", "json")), &list))
	if len(list.Effects) != 1 {
		s.t.Fatalf("%d effects", len(list.Effects))
	}
	return list.Effects[0]
}

func TestUncertainEffectIsResolvedByHand(t *testing.T) {
	t.Parallel()
	s := newPayments(t)
	id, key := s.charge()
	out := s.effects("list", "--wide", "--consumer", "payments/charge")
	if !strings.Contains(out, key+"  "+id+"  uncertain") || !strings.Contains(out, "order 42") || !strings.Contains(out, "no answer") {
		t.Fatalf("list: %q", out)
	}
	if out := s.effects("list", "--consumer", "other/one", "-o", "json"); out != `{"effects":[]}`+"\n" {
		t.Errorf("list of another consumer: %q", out)
	}
	if out := s.effects("resolve", "--effect", key, "--result", `"`+receipt+`"`, "--reason", "provider's list"); out != id+"\n" {
		t.Errorf("resolve: %q", out)
	}
	if e := s.shown(key); e.State != "answered" || !e.HasResult || e.Reason != "" {
		t.Errorf("after it was resolved: %+v", e)
	}
	s.run()
	if s.asked != 1 || len(s.finished) != 1 || s.finished[0] != receipt {
		t.Errorf("asked %d times, finished with %q", s.asked, s.finished)
	}
	e := s.shown(key)
	if e.State != "done" || e.EndedAt == nil || len(e.History) != 2 || e.History[0].Outcome != "effect_uncertain" || e.History[0].Error != "no answer" ||
		e.History[1].Outcome != "effect_resolved" || !strings.HasPrefix(e.History[1].Error, "provider's list (by ") {
		t.Errorf("in the end: %+v", e)
	}
	if out := s.effects("show", "--wide", "--id", id); !strings.Contains(out, "effect_resolved") || !strings.Contains(out, "provider's list") {
		t.Errorf("show: %q", out)
	}
	if out := s.effects("list"); strings.Contains(out, key) {
		t.Errorf("list of what waits: %q", out)
	}

	status, out, errs := call(t, nil, "effects", "resolve", "--inbox", s.url, "--effect", key, "--result", "null", "--reason", "again")
	if status != exitFailed || out != "" || !strings.Contains(errs, "the effect is done, and its result is known") {
		t.Errorf("resolving it again: %d, %q, %q", status, out, errs)
	}
}

func TestEffectsAreRedrivenAndDiscarded(t *testing.T) {
	t.Parallel()
	s := newPayments(t)
	id, key := s.charge()
	s.refuse = true
	if out := s.effects("redrive", "--state", "uncertain", "--reason", "provider does not know it", "-o", "json"); out != `{"ids":["`+id+`"]}`+"\n" {
		t.Errorf("redrive: %q", out)
	}
	s.run()
	if s.asked != 2 {
		t.Errorf("asked %d times", s.asked)
	}
	if e := s.shown(key); e.State != "dead" || len(e.History) != 3 || !strings.HasPrefix(e.History[1].Error, "provider does not know it (by ") {
		t.Errorf("after the refusal of what the operator knows not to be done: %+v", e)
	}
	if out := s.effects("discard", "--id", id, "--reason", "paid in cash"); out != id+"\n" {
		t.Errorf("discard: %q", out)
	}
	if e := s.shown(key); e.State != "discarded" || !strings.HasPrefix(e.Reason, "paid in cash (by ") || len(e.History) != 4 {
		t.Errorf("in the end: %+v", e)
	}
	status, out, errs := call(t, nil, "effects", "redrive", "--inbox", s.url, "--effect", key, "--reason", "too late")
	if status != exitFound || out != "" || errs != "0 of 1 selected were redriven\n"+key+" stays discarded\n" {
		t.Errorf("redrive of what was discarded: %d, %q, %q", status, out, errs)
	}
	if out := s.effects("list", "--wide", "--state", "discarded"); !strings.Contains(out, "discarded: paid in cash") {
		t.Errorf("list: %q", out)
	}
}

func TestNoEffectIsChangedUnlessItIsNamed(t *testing.T) {
	t.Parallel()
	s := newPayments(t)
	_, key := s.charge()
	other := "00000000-0000-0000-0000-000000000001"
	in := []string{"--inbox", s.url}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--inbox (or BOXPAIR_INBOX_URL): want exactly one, got 0", []string{"list"}},
		{"unknown flag --outbox", append(in, "--outbox", s.url)},
		{"--effect: is missing: name keys", append(in, "--reason", "r")},
		{"--reason: is missing", append(in, "--effect", key)},
		{"--reason: want at most 1 KiB", append(in, "--effect", key, "--reason", strings.Repeat("x", 1025))},
		{"--effect: want a UUID", append(in, "--effect", "x")},
		{`--state: unknown state "parked"`, append(in, "--state", "parked")},
		{"--effect: exactly one key is required, got 0", append([]string{"resolve"}, append(in, "--result", "1", "--reason", "r")...)},
		{"--effect: exactly one key is required, got 2", append([]string{"resolve"}, append(in, "--effect", key, "--effect", other, "--result", "1", "--reason", "r")...)},
		{"--result: is missing", append([]string{"resolve"}, append(in, "--effect", key, "--reason", "r")...)},
		{"--result: is not valid JSON", append([]string{"resolve"}, append(in, "--effect", key, "--result", "{", "--reason", "r")...)},
		{"--effect: no effect has this key", append([]string{"resolve"}, append(in, "--effect", other, "--result", "1", "--reason", "r")...)},
		{"--effect: is missing: name keys", append([]string{"show"}, in...)},
		{"there is no such effect", append([]string{"show"}, append(in, "--effect", other)...)},
		{`unknown command "undo"`, []string{"undo"}},
	} {
		args := c.args
		if strings.HasPrefix(args[0], "-") {
			args = append([]string{"redrive"}, args...)
		}
		status, out, errs := call(t, nil, append([]string{"effects"}, args...)...)
		if status != exitFailed || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%v: %d, %q, %q, want %q", args, status, out, errs, c.want)
		}
	}
	if e := s.shown(key); e.State != "uncertain" || !e.Uncertain || len(e.History) != 1 {
		t.Errorf("the effect is %+v", e)
	}
}

// TestManyEffectsAreChangedAfterAConfirmation, all of them and not only the first hundred.
func TestManyEffectsAreChangedAfterAConfirmation(t *testing.T) {
	t.Parallel()
	url, plant := plantSQLite(t)
	plant(`WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 150)
		INSERT INTO boxpair_inbox_effects (consumer, dispatch_id, effect_key, topic, key, ordered, intent, state, prepared_at)
		SELECT 1, randomblob(16), randomblob(16), 'order.placed', 'k', 0, '"' || n || '"', 'dead', 1 FROM n`)
	if _, out, errs := call(t, nil, "effects", "list", "--inbox", url); strings.Count(out, "\n") != 101 || errs != "100 of 150 are shown: pass --limit 150 to see all\n" {
		t.Errorf("list: %d lines, %q", strings.Count(out, "\n"), errs)
	}
	redrive := []string{"effects", "redrive", "--inbox", url, "--state", "dead"}
	if status, out, errs := call(t, nil, append(redrive, "--dry-run")...); status != exitOK || strings.Count(out, "\n") != 150 || !strings.HasSuffix(errs, "150 selected; nothing was redriven\n") {
		t.Errorf("dry: %d, %d lines, %q", status, strings.Count(out, "\n"), errs)
	}
	redrive = append(redrive, "-m", "the bank answers")
	if status, out, errs := typed(t, "n\n", redrive...); status != exitFailed || out != "" || !strings.Contains(errs, "redrive 150 of ") || !strings.Contains(errs, "declined; nothing was changed") {
		t.Errorf("declined: %d, %q, %q", status, out, errs)
	}
	if _, out, errs := typed(t, "y\n", append(redrive, "--limit", "7")...); strings.Count(out, "\n") != 7 || !strings.HasSuffix(errs, "7 of 7 selected were redriven\n") {
		t.Errorf("some: %q, %q", out, errs)
	}
	if status, out, errs := typed(t, "", append(redrive, "--yes", "--as", "night shift")...); status != exitOK || strings.Count(out, "\n") != 143 || !strings.HasSuffix(errs, "143 of 143 selected were redriven\n") {
		t.Errorf("all: %d, %d lines, %q", status, strings.Count(out, "\n"), errs)
	}
	if status, out, errs := typed(t, "", redrive...); status != exitFound || out != "" || errs != "0 of 0 selected were redriven\n" {
		t.Errorf("none: %d, %q, %q", status, out, errs)
	}
}
