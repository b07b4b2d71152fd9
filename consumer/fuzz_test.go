package consumer

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func namesFields(t *testing.T, err error, fields ...string) {
	t.Helper()
	for line := range strings.Lines(err.Error()) {
		named := func(field string) bool { return strings.HasPrefix(line, field+": ") }
		if !slices.ContainsFunc(fields, named) {
			t.Errorf("an error names no field: %q", line)
		}
	}
}

// FuzzConfig: no configuration panics, and what is refused is named.
func FuzzConfig(f *testing.F) {
	f.Add("stock", int64(0), 0, int64(0), int64(0))
	f.Add("", int64(-1), -2, int64(1), int64(-1<<63))
	f.Add("a\x00", int64(1), 1, int64(-1), int64(1))
	f.Fuzz(func(t *testing.T, service string, window int64, cache int, hold, step int64) {
		c, err := Config{
			Service: service, Window: time.Duration(window), CacheSize: cache, MaxHold: time.Duration(hold),
			PollInterval: time.Duration(hold), ForgetInterval: time.Duration(step), MaxClockStep: time.Duration(step),
		}.withDefaults()
		if err != nil {
			namesFields(t, err, "Service", "Window", "CacheSize", "MaxHold", "PollInterval", "ForgetInterval", "MaxClockStep")
			return
		}
		if c.Window <= 0 || c.CacheSize < -1 || c.CacheSize == 0 || c.MaxHold <= 0 || c.PollInterval <= 0 || c.Logger == nil {
			t.Errorf("accepted: %+v", c)
		}
	})
}

// FuzzHandlerConfig is FuzzConfig for a handler.
func FuzzHandlerConfig(f *testing.F) {
	f.Add("", int64(0), int64(0), uint8(0), 0, 0)
	f.Add("topic", int64(1), int64(2), uint8(3), -1, 1<<21)
	f.Add("\xff", int64(-1), int64(-1), uint8(255), 1, 1)
	f.Fuzz(func(t *testing.T, topic string, timeout, backoff int64, level uint8, attempts, parked int) {
		c, err := HandlerConfig{
			Topic: topic, Timeout: time.Duration(timeout), LockTimeout: time.Duration(backoff), Isolation: inbox.Isolation(level),
			Retry:  RetryConfig{QuickAttempts: attempts, QuickBackoff: time.Duration(backoff), MaxAttempts: attempts, MaxSoloStarts: parked},
			Parked: ParkedConfig{MinBackoff: time.Duration(backoff), MaxBackoff: time.Duration(timeout), Concurrency: parked},
		}.withDefaults()
		if err != nil {
			namesFields(t, err, "Topic", "Timeout", "LockTimeout", "Isolation", "Retry.QuickAttempts", "Retry.QuickBackoff", "Retry.MaxAttempts",
				"Parked.MinBackoff", "Parked.MaxBackoff", "Retry.MaxSoloStarts", "Parked.Concurrency")
			return
		}
		if c.Timeout <= 0 || c.LockTimeout <= 0 || c.LockTimeout > c.Timeout || c.Retry.MaxAttempts <= 0 || c.Parked.MaxBackoff < c.Parked.MinBackoff {
			t.Errorf("accepted: %+v", c)
		}
		h := &Handler[struct{}]{inbox: &Inbox[struct{}]{random: randomUpTo}, cfg: c}
		for _, n := range []int{0, 1, c.Retry.MaxAttempts} {
			if _, d := h.afterFailure(countAttempt, n, nil); d < 0 || d > c.Parked.MaxBackoff {
				t.Errorf("parked for %v after %d attempts", d, n)
			}
		}
	})
}

// FuzzRead: whatever arrives has a dispatch ID of its own and can be stored.
func FuzzRead(f *testing.F) {
	f.Add("3f5f7d2e-6d2b-5c62-9d0a-3f6a1b2c3d4e", "topic", "key", transport.MetaStamp, "2026-11-20T12:00:00Z", []byte("x"), false)
	f.Add("", "", "", transport.MetaDigest, "zz", []byte(nil), true)
	f.Add("01J0ULID", "t\x00", strings.Repeat("k", 300), MetaForeignID, "\xff", []byte{0}, true)
	f.Fuzz(func(t *testing.T, id, topic, key, name, value string, payload []byte, derive bool) {
		h := &Handler[struct{}]{inbox: &Inbox[struct{}]{}, cfg: HandlerConfig{Topic: topic, DeriveID: derive}}
		msg := message.NewMessage(id, payload)
		msg.Metadata.Set(transport.MetaKey, key)
		msg.Metadata.Set(name, value)
		in, err := h.read(t.Context(), msg)
		m := in.toStore()
		if m.ID == uuid.Nil || !utf8.ValidString(m.Topic+m.Key) || strings.Contains(m.Topic+m.Key, "\x00") ||
			len(m.Topic) > field.MaxKey || len(m.Key) > field.MaxKey {
			t.Errorf("stored as %+v", m)
		}
		if (m.Key == "") != (in.event.Key == "") {
			t.Errorf("key %q is stored as %q", in.event.Key, m.Key)
		}
		again, errAgain := h.read(t.Context(), msg.Copy())
		if again.event.ID != in.event.ID && id != "" || (errAgain == nil) != (err == nil) {
			t.Errorf("read as %v, then as %v", in.event.ID, again.event.ID)
		}
		if err != nil && m.ID.String() == strings.ToLower(id) {
			t.Errorf("a message that is refused keeps its dispatch ID: %v", err)
		}
	})
}
