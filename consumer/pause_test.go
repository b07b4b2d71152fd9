package consumer_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/control"
)

func TestConsumersArePausedAndResumed(t *testing.T) {
	t.Parallel()
	store, records := newFake(), &bytes.Buffer{}
	in, err := consumer.New[*fakeTx](store, consumer.Config{Service: "stock", Logger: slog.New(slog.NewTextHandler(records, nil))})
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(time.Hour)
	for _, p := range []control.Pause{
		{Kind: control.Consumer, Name: "stock/reserve", Reason: "wrong prices", By: "alice", Until: until},
		{Kind: control.Consumer, Name: "billing/*", Reason: "moves"},
	} {
		if err := in.Pause(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.SetPause(t.Context(), control.Pause{Kind: control.Topic, Name: "a", Reason: "is the outbox's"}); err != nil {
		t.Fatal(err)
	}
	list, err := in.Pauses(t.Context())
	if err != nil || len(list) != 2 || list[0].Name != "billing/*" || list[1].Name != "stock/reserve" || list[1].By != "alice" || !list[1].Until.Equal(until) {
		t.Errorf("pauses are %+v, %v", list, err)
	}
	for _, want := range []bool{true, false} {
		if ended, err := in.Resume(t.Context(), control.Consumer, "stock/reserve"); err != nil || ended != want {
			t.Errorf("resumed: %v, %v, want %v", ended, err, want)
		}
	}
	for _, want := range []string{
		`level=INFO msg="handling paused" consumer=stock/reserve reason="wrong prices" by=alice until=`,
		`level=INFO msg="handling resumed" consumer=stock/reserve`,
	} {
		if n := strings.Count(records.String(), want); n != 1 {
			t.Errorf("%d records say %s: %s", n, want, records)
		}
	}
}

func TestFaultyPauseIsNotWritten(t *testing.T) {
	t.Parallel()
	in, err := consumer.New[*fakeTx](newFake(), consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	for want, p := range map[string]control.Pause{
		`Kind: a topic belongs to its outbox`:                 {Kind: control.Topic, Name: "order.#", Reason: "x"},
		`Kind: a downstream belongs to its outbox`:            {Kind: control.Downstream, Name: "analytics", Reason: "x"},
		`Kind: "queue" is not consumer`:                       {Kind: "queue", Name: "a", Reason: "x"},
		`Name: is required`:                                   {Kind: control.Consumer, Reason: "x"},
		`Name: "stock" is not of the form`:                    {Kind: control.Consumer, Name: "stock", Reason: "x"},
		`Name: "*/reserve" is not of the form`:                {Kind: control.Consumer, Name: "*/reserve", Reason: "x"},
		`Name: "stock/" is not of the form`:                   {Kind: control.Consumer, Name: "stock/", Reason: "x"},
		`Reason: is required`:                                 {Kind: control.Consumer, Name: "stock/*"},
		`Until: 2026-01-31T12:00:00Z is over`:                 {Kind: control.Consumer, Name: "stock/*", Reason: "x", Until: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)},
		`By: has 256 bytes`:                                   {Kind: control.Consumer, Name: "stock/*", Reason: "x", By: strings.Repeat("x", 256)},
		"Reason: is required\nName: \"s\" is not of the form": {Kind: control.Consumer, Name: "s"},
	} {
		if err := in.Pause(t.Context(), p); err == nil || !strings.HasPrefix(err.Error(), "pause: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %s", err, want)
		}
	}
	if list, err := in.Pauses(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("pauses are %+v, %v", list, err)
	}
	if _, err := in.Resume(t.Context(), control.Topic, "a"); err == nil || !strings.HasPrefix(err.Error(), "resume: Kind: a topic belongs to its outbox") {
		t.Errorf("error is %v", err)
	}
}

func TestPauseThatIsNotInForceIsAnError(t *testing.T) {
	t.Parallel()
	store := newFake()
	store.Now = func() time.Time { return time.Now().Add(time.Hour) } // the database's clock
	in, err := consumer.New[*fakeTx](store, consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	p := control.Pause{Kind: control.Consumer, Name: "stock/*", Reason: "x", Until: time.Now().Add(time.Minute)}
	if err := in.Pause(t.Context(), p); !errors.Is(err, control.ErrOver) || !strings.HasPrefix(err.Error(), "pause: Until: ") {
		t.Errorf("error is %v", err)
	}
}
