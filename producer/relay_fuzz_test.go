package producer

import (
	"testing"
	"time"
)

// FuzzRelayConfig: no configuration panics, and what is refused is named.
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
			if b := c.core().Backoff.bound(n); b <= 0 || b > c.Backoff.Max {
				t.Errorf("backoff after %d attempts: %v", n, b)
			}
		}
	})
}
