package producer

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/transport"
)

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
