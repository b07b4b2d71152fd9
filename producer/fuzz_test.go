package producer

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/boxpair/boxpair/transport"
)

// FuzzStoredError: whatever a broker says can be stored.
func FuzzStoredError(f *testing.F) {
	f.Add("refused", 1)
	f.Add("\xff\x00é", 400)
	f.Add(strings.Repeat("a", maxStoredError-1), 2)
	f.Fuzz(func(t *testing.T, text string, times int) {
		text = strings.Repeat(text, min(max(times, 0), 2000))
		stored := storedError(errors.New(text))
		if !utf8.ValidString(stored) || len(stored) > maxStoredError || strings.Contains(stored, "\x00") {
			t.Errorf("%q is stored as %q", text, stored)
		}
		if utf8.ValidString(text) && !strings.Contains(text, "\x00") && !strings.HasPrefix(text, stored) {
			t.Errorf("%q is stored as %q, which is no beginning of it", text, stored)
		}
		if len(text)*3 <= maxStoredError && utf8.RuneCountInString(stored) != utf8.RuneCountInString(strings.ToValidUTF8(text, "\uFFFD")) {
			t.Errorf("%q is stored as %q, which is shorter", text, stored)
		}
	})
}

// namesFields fails unless every line of err begins with the name of a field.
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
	f.Add("orders", 0, 0, 0, int64(0))
	f.Add("", -1, 97<<10, 1<<21, int64(-1))
	f.Add("a\x00b", 1<<30+1, 1, 1, int64(1))
	f.Fuzz(func(t *testing.T, name string, payload, headers, attempts int, notify int64) {
		c, err := Config{
			Name: name, MaxPayload: payload, MaxHeaders: headers, MaxTransactAttempts: attempts,
			NotifyInterval: time.Duration(notify),
		}.withDefaults()
		if err != nil {
			namesFields(t, err, "Name", "MaxPayload", "MaxHeaders", "MaxTransactAttempts", "NotifyInterval")
			return
		}
		if c.MaxPayload <= 0 || c.MaxHeaders <= 0 || c.MaxHeaders > maxHeadersCeil || c.MaxTransactAttempts <= 0 ||
			c.NotifyInterval <= 0 || c.Name != name || c.Logger == nil {
			t.Errorf("accepted: %+v", c)
		}
	})
}

// FuzzRelayConfig is FuzzConfig for a relay.
func FuzzRelayConfig(f *testing.F) {
	f.Add("", 0, 0, 0, int64(0), int64(0), int64(0))
	f.Add("relay", -1, 1, 1<<40, int64(1), int64(2), int64(1))
	f.Add("\xff", 1, -1, -1, int64(-1), int64(1<<62), int64(-1<<63))
	f.Fuzz(func(t *testing.T, name string, window, perKey, attempts int, ttl, initial, longest int64) {
		c, err := RelayConfig{
			Name: name, Window: window, FetchSize: perKey, MaxPerKey: perKey, MaxAttempts: attempts, Publishers: window,
			LeaseTTL: time.Duration(ttl), Backoff: Backoff{Initial: time.Duration(initial), Max: time.Duration(longest)},
			PollMin: time.Duration(initial), PollMax: time.Duration(longest), SendTimeout: time.Duration(ttl),
			RouteProbeInterval: time.Duration(ttl), RouteGrace: time.Duration(longest), ShutdownTimeout: time.Duration(ttl),
		}.withDefaults()
		if err != nil {
			namesFields(t, err, "Name", "Window", "FetchSize", "MaxPerKey", "MaxAttempts", "Publishers", "LeaseTTL",
				"Backoff.Initial", "Backoff.Max", "PollMin", "PollMax", "SendTimeout", "RouteProbeInterval", "RouteGrace",
				"ShutdownTimeout")
			return
		}
		if c.Name == "" || c.Window <= 0 || c.MaxPerKey <= 0 || c.MaxAttempts <= 0 || c.LeaseTTL < minLeaseTTL ||
			c.Backoff.Initial <= 0 || c.Backoff.Max < c.Backoff.Initial || c.PollMax < c.PollMin || c.Logger == nil {
			t.Errorf("accepted: %+v", c)
		}
		for _, n := range []int{1, 2, 63, 64, c.MaxAttempts} {
			if b := c.Backoff.bound(n); b <= 0 || b > c.Backoff.Max {
				t.Errorf("backoff after %d attempts: %v", n, b)
			}
		}
	})
}

// FuzzEvent: what is accepted arrives as it was given, and what is refused is
// named without its content.
func FuzzEvent(f *testing.F) {
	f.Add("topic", "key", "type", "source", "application/json", "tenant", "acme", "trace", "payload", 1, int64(0))
	f.Add("", "\xff", "a\x00", strings.Repeat("s", 256), "", transport.MetaKey, "v", strings.Repeat("t", 513), "", -1, int64(1)<<40)
	f.Add("topic", "", "", "", "", "h", "v", "", "", 1<<40, int64(0))
	f.Add("topic", "", "", "", "", "", "\x00", "", "", 1<<40, int64(-1)<<40)
	f.Fuzz(func(t *testing.T, topic, key, kind, source, contentType, header, value, trace, payload string, schema int, occurred int64) {
		c, err := Config{Name: "p", MaxPayload: 1000, MaxHeaders: 1000}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		e := Event{
			Topic: topic, Key: key, Type: kind, Source: source, ContentType: contentType, TraceState: trace,
			Payload: []byte(payload), Headers: map[string]string{header: value}, SchemaVersion: schema,
			OccurredAt: time.Unix(occurred, 0),
		}
		if err := c.validate(&e); err != nil {
			namesFields(t, err, "Topic", "Key", "Type", "Source", "ContentType", "TraceState", "Payload", "Headers",
				"SchemaVersion", "OccurredAt")
			shows := func(content string) bool { return len(content) > 40 && strings.Contains(err.Error(), content) }
			if shows(value) || shows(payload) {
				t.Errorf("an error shows content: %v", err)
			}
			return
		}
		if schema != int(int32(schema)) {
			t.Errorf("a schema version of %d is accepted", schema)
		}
		w := &Writer[struct{}]{outbox: &Outbox[struct{}]{cfg: c}}
		e.Random, e.Source = true, ""
		r, err := w.record(&e, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r.Stamp = time.Unix(1, 0).UTC()
		got, err := transport.Parse(topic, r.Message())
		r.Producer, got.Producer = "", ""
		if err != nil || !reflect.DeepEqual(got, r.Event) {
			t.Errorf("%+v arrives as %+v, %v", r.Event, got, err)
		}
	})
}
