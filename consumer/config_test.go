package consumer_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

func TestBadConfigurationIsRefusedWithAllOfItsProblems(t *testing.T) {
	t.Parallel()
	_, err := consumer.New[*fakeTx](nil, consumer.Config{Window: -1, CacheSize: -2, MaxHold: -1, PollInterval: -1, ForgetInterval: -1, MaxClockStep: -1})
	wantProblems(t, err, "store", "Service", "Window", "CacheSize", "MaxHold", "PollInterval", "ForgetInterval", "MaxClockStep")
	_, err = consumer.New(newFake(), consumer.Config{Service: "a/b"})
	wantProblems(t, err, "Service")
	_, err = consumer.New(newFake(), consumer.Config{Service: "a\x00b"})
	wantProblems(t, err, "Service")
	_, err = consumer.New(newFake(), consumer.Config{Service: strings.Repeat("s", 101)})
	wantProblems(t, err, "Service")

	_, err = consumer.New(newFake(), consumer.Config{Service: "stock"}, nil, consumer.WithOutbox[*fakeTx](nil))
	wantProblems(t, err, "option", "WithOutbox")

	inbox, err := consumer.New(newFake(), consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = inbox.AddHandler(nil, "", "orders", nil, nil, consumer.HandlerConfig{Timeout: -1})
	wantProblems(t, err, "router", "subscriber", "name", "function", "Timeout")
	_, err = inbox.Handle("", nil, consumer.HandlerConfig{
		Timeout: -1, MaxPerSecond: -1, LockTimeout: time.Hour, Isolation: 9, Topic: "\xff", Retry: consumer.RetryConfig{QuickAttempts: -1, QuickBackoff: -1, MaxAttempts: -1, MaxSoloStarts: -1},
		Parked:     consumer.ParkedConfig{MinBackoff: time.Hour, MaxBackoff: time.Second, Concurrency: -1},
		Optimistic: true, Group: consumer.GroupConfig{Size: 2},
	})
	wantProblems(t, err, "name", "function", "Timeout", "MaxPerSecond", "LockTimeout", "Isolation", "Topic", "Optimistic", "Retry.QuickAttempts", "Retry.QuickBackoff",
		"Retry.MaxAttempts", "Parked.MaxBackoff", "Retry.MaxSoloStarts", "Parked.Concurrency")
	if _, err := inbox.Handle("fine", func(context.Context, *work, *message.Message) error { return nil }, consumer.HandlerConfig{
		Timeout: time.Second, Parked: consumer.ParkedConfig{MinBackoff: time.Hour},
	}); err != nil {
		t.Errorf("defaults do not fit what is set: %v", err)
	}
}

func wantProblems(t *testing.T, err error, fields ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want problems with %v", fields)
	}
	for _, f := range fields {
		if !strings.Contains(err.Error(), f+":") && !strings.Contains(err.Error(), f+" ") {
			t.Errorf("no word of %s in:\n%v", f, err)
		}
	}
}

func TestClaimsCarryWhatTheHandlerAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{handler: consumer.HandlerConfig{
		Isolation: inbox.Serializable, Timeout: 10 * time.Second, LockTimeout: time.Second, Order: consumer.OrderConfig{ByKey: true},
	}})
	m := keyed(1, "k")
	r.consume(m)
	c := r.store.claimed[0]
	if c.Isolation != inbox.Serializable || c.IdleTimeout <= 10*time.Second || c.LockTimeout != time.Second ||
		c.Key != "k" || c.Message == nil || c.Stamp.IsZero() || c.Digest.IsZero() {
		t.Errorf("claim: %+v", c)
	}
	unordered := newRig(t, setup{})
	unordered.consume(keyed(1, "k"))
	if c := unordered.store.claimed[0]; c.Key != "" {
		t.Errorf("claim: %+v", c)
	}
}

func TestNothingTouchesTheDatabaseBeforeTheFirstMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	if len(r.store.calls) != 0 {
		t.Errorf("steps taken: %v", r.store.calls)
	}
}

// It changes the default logger, so it is not parallel.
func TestInboxWithoutALoggerLogsToTheDefaultOne(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	log := &logBuffer{}
	slog.SetDefault(textLogger(log))
	inbox, err := consumer.New(newFake(), consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := inbox.Handle("reserve", func(context.Context, *work, *message.Message) error { return consumer.Reject(errHandler) },
		consumer.HandlerConfig{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "message is dead") {
		t.Errorf("logged: %s", log.String())
	}
}
