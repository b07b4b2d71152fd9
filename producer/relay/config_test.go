package relay

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
)

// FuzzConfig: no configuration panics, and what is refused is named.
func FuzzConfig(f *testing.F) {
	f.Add("", 0, 0, 0, int64(0), int64(0), int64(0))
	f.Add("relay", -1, 1, 1<<40, int64(1), int64(2), int64(1))
	f.Add("\xff", 1, -1, -1, int64(-1), int64(1<<62), int64(-1<<63))
	f.Fuzz(func(t *testing.T, name string, window, perKey, attempts int, ttl, initial, longest int64) {
		c, err := Config{
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
			c.Backoff.Initial <= 0 || c.Backoff.Max < c.Backoff.Initial || c.PollMax < c.PollMin || c.PollIdle < c.PollMax || c.Logger == nil {
			t.Errorf("accepted: %+v", c)
		}
		for _, n := range []int{1, 2, 63, 64, c.MaxAttempts} {
			if b := c.core().Backoff.Bound(n); b <= 0 || b > c.Backoff.Max {
				t.Errorf("backoff after %d attempts: %v", n, b)
			}
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

func TestConfigErrorsNameTheField(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]Config{
		"Name":               {Name: strings.Repeat("x", 256)},
		"LeaseTTL":           {LeaseTTL: time.Millisecond},
		"Window":             {Window: -1},
		"FetchSize":          {FetchSize: -1},
		"MaxPerKey":          {MaxPerKey: -1},
		"MaxAttempts":        {MaxAttempts: -1},
		"Publishers":         {Publishers: -1},
		"Backoff.Initial":    {Backoff: Backoff{Initial: -1}},
		"Backoff.Max":        {Backoff: Backoff{Initial: 2, Max: 1}},
		"PollMin":            {PollMin: -1},
		"PollMax":            {PollMin: 2, PollMax: 1},
		"PollIdle":           {PollMax: 2, PollIdle: 1},
		"SendTimeout":        {SendTimeout: -1},
		"RouteGrace":         {RouteGrace: -1},
		"MaxPerSecond":       {MaxPerSecond: -1},
		"RouteProbeInterval": {RouteProbeInterval: -1},
		"ShutdownTimeout":    {ShutdownTimeout: -1},
	} {
		if _, err := NewStandalone(memstore.New(nil), &fakeSender{}, cfg); err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := NewStandalone(nil, nil, Config{}); err == nil || !strings.Contains(err.Error(), "store") || !strings.Contains(err.Error(), "publisher") {
		t.Errorf("without anything: %v", err)
	}
	if _, err := New[int](nil, &fakeSender{}, Config{}); err == nil {
		t.Error("an outbox is not asked for")
	}
	a, _ := NewStandalone(memstore.New(nil), &fakeSender{}, Config{})
	b, _ := NewStandalone(memstore.New(nil), &fakeSender{}, Config{})
	if a.Name() == b.Name() {
		t.Error("two relays have one name")
	}
}
