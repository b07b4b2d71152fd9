package producer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/memcontrol"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/control"
)

// pausable is an outbox whose pauses are in memory.
type pausable struct {
	fakeEvents
	control memcontrol.Store
	err     error // of SetPause and EndPause
	listErr error // of Pauses
}

func (p *pausable) Pauses(ctx context.Context) ([]control.Pause, error) {
	if p.listErr != nil {
		return nil, p.listErr
	}
	return p.control.Pauses(ctx)
}

func (p *pausable) SetPause(ctx context.Context, pause control.Pause) error {
	if p.err != nil {
		return p.err
	}
	return p.control.SetPause(ctx, pause)
}

func (p *pausable) EndPause(ctx context.Context, kind control.Kind, name string) (bool, error) {
	if p.err != nil {
		return false, p.err
	}
	return p.control.EndPause(ctx, kind, name)
}

func newPausable(t *testing.T) (*producer.Outbox[*fakeTx], *pausable, *bytes.Buffer) {
	t.Helper()
	store, records := &pausable{}, &bytes.Buffer{}
	out, err := producer.New[*fakeTx](store, producer.Config{Name: "orders", Logger: slog.New(slog.NewTextHandler(records, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return out, store, records
}

func TestTopicsAndDownstreamsArePausedAndResumed(t *testing.T) {
	t.Parallel()
	out, store, records := newPausable(t)
	until := time.Now().Add(time.Hour)
	topic := control.Pause{Kind: control.Topic, Name: "order.#", Reason: "wrong prices", By: "alice", Until: until}
	downstream := control.Pause{Kind: control.Downstream, Name: "analytics", Reason: "moves"}
	for _, p := range []control.Pause{topic, downstream} {
		if err := out.Pause(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.control.SetPause(t.Context(), control.Pause{Kind: control.Consumer, Name: "stock/*", Reason: "is the inbox's"}); err != nil {
		t.Fatal(err)
	}
	list, err := out.Pauses(t.Context())
	if err != nil || len(list) != 2 || list[0].Name != "analytics" || list[1].Name != "order.#" || list[1].By != "alice" || !list[1].Until.Equal(until) {
		t.Errorf("pauses are %+v, %v", list, err)
	}
	for _, want := range []bool{true, false} {
		if ended, err := out.Resume(t.Context(), control.Topic, "order.#"); err != nil || ended != want {
			t.Errorf("resumed: %v, %v, want %v", ended, err, want)
		}
	}
	for _, want := range []string{
		`level=INFO msg="sending paused" kind=topic name=order.# reason="wrong prices" by=alice until=`,
		`level=INFO msg="sending resumed" kind=topic name=order.#`,
	} {
		if n := strings.Count(records.String(), want); n != 1 {
			t.Errorf("%d records say %s: %s", n, want, records)
		}
	}
}

func TestFaultyPauseIsNotWritten(t *testing.T) {
	t.Parallel()
	out, _, records := newPausable(t)
	for want, p := range map[string]control.Pause{
		`Kind: a consumer belongs to its inbox`:            {Kind: control.Consumer, Name: "stock/*", Reason: "x"},
		`Kind: "queue" is neither topic nor downstream`:    {Kind: "queue", Name: "a", Reason: "x"},
		`Name: in "order.a*", * and # stand for whole`:     {Kind: control.Topic, Name: "order.a*", Reason: "x"},
		`Name: is required`:                                {Kind: control.Topic, Reason: "x"},
		`Name: has 256 bytes`:                              {Kind: control.Topic, Name: strings.Repeat("x", 256), Reason: "x"},
		`Reason: is required`:                              {Kind: control.Downstream, Name: "a*"},
		`Reason: has 1025 bytes`:                           {Kind: control.Downstream, Name: "a", Reason: strings.Repeat("x", 1025)},
		`By: is not valid UTF-8`:                           {Kind: control.Downstream, Name: "a", Reason: "x", By: "\xff"},
		`Until: 2026-01-31T12:00:00Z is over`:              {Kind: control.Topic, Name: "a", Reason: "x", Until: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)},
		"Reason: is required\nUntil: 2026-01-31T12:00:00Z": {Kind: control.Topic, Name: "a", Until: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)},
	} {
		if err := out.Pause(t.Context(), p); err == nil || !strings.HasPrefix(err.Error(), "pause: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %s", err, want)
		}
	}
	if list, err := out.Pauses(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("pauses are %+v, %v", list, err)
	}
	if _, err := out.Resume(t.Context(), control.Consumer, "stock/*"); err == nil || !strings.HasPrefix(err.Error(), "resume: Kind: a consumer belongs to its inbox") {
		t.Errorf("error is %v", err)
	}
	if records.Len() > 0 {
		t.Errorf("logged: %s", records)
	}
}

func TestPauseThatIsNotWrittenIsAnError(t *testing.T) {
	t.Parallel()
	out, store, records := newPausable(t)
	store.err = errors.New("connection refused")
	if err := out.Pause(t.Context(), control.Pause{Kind: control.Topic, Name: "a", Reason: "x"}); !errors.Is(err, store.err) {
		t.Errorf("error is %v", err)
	}
	if ended, err := out.Resume(t.Context(), control.Topic, "a"); ended || !errors.Is(err, store.err) {
		t.Errorf("ended: %v, %v", ended, err)
	}
	if records.Len() > 0 {
		t.Errorf("logged: %s", records)
	}
}

func TestPauseThatIsNotInForceIsAnError(t *testing.T) {
	t.Parallel()
	out, store, records := newPausable(t)
	store.control.Now = func() time.Time { return time.Now().Add(time.Hour) } // the database's clock
	p := control.Pause{Kind: control.Topic, Name: "a", Reason: "x", Until: time.Now().Add(time.Minute)}
	if err := out.Pause(t.Context(), p); !errors.Is(err, control.ErrOver) || !strings.HasPrefix(err.Error(), "pause: Until: ") {
		t.Errorf("error is %v", err)
	}
	store.listErr = errors.New("connection refused")
	if err := out.Pause(t.Context(), p); !errors.Is(err, store.listErr) || errors.Is(err, control.ErrOver) {
		t.Errorf("error is %v", err)
	}
	if records.Len() > 0 {
		t.Errorf("logged: %s", records)
	}
}
