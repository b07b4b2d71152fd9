package health

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

func check(t *testing.T, cfg Config) *Check {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOutboxIsAsItsWorstNumber(t *testing.T) {
	t.Parallel()
	defaults, own := check(t, Config{}), check(t, Config{
		DegradedAge: time.Second, UnhealthyAge: time.Second, DegradedPending: 5, UnhealthyPending: 7, DegradedDead: 2, UnhealthyDead: math.MaxInt,
	})
	const moment = time.Millisecond
	for name, c := range map[string]struct {
		check *Check
		stats outbox.Stats
		want  State
		says  string
	}{
		"empty":                               {defaults, outbox.Stats{Relays: 1, Owned: 64}, Healthy, ""},
		"no relay runs, and nothing waits":    {defaults, outbox.Stats{}, Degraded, "degraded: no relay runs"},
		"no shard has a relay":                {defaults, outbox.Stats{Relays: 2}, Degraded, "degraded: no shard has a relay"},
		"just below everything":               {defaults, outbox.Stats{OldestPending: time.Minute - moment, Pending: 9_999, Relays: 1, Owned: 64}, Healthy, ""},
		"deferred events are no lag":          {defaults, outbox.Stats{Deferred: 1_000_000, Relays: 1, Owned: 64}, Healthy, ""},
		"a minute old":                        {defaults, outbox.Stats{OldestPending: time.Minute, Pending: 1, Relays: 1, Owned: 64}, Degraded, "degraded: the oldest pending event is 1m0s old"},
		"ten minutes old, and nobody sends":   {defaults, outbox.Stats{OldestPending: 10 * time.Minute, Pending: 1}, Unhealthy, "unhealthy: the oldest pending event is 10m0s old; degraded: no relay runs"},
		"many, parked ones included":          {defaults, outbox.Stats{Pending: 9_998, Retrying: 1, Following: 1, Relays: 1, Owned: 64}, Degraded, "degraded: pending events: 10000"},
		"more than are counted":               {defaults, outbox.Stats{Pending: 100_000, PendingCapped: true, Relays: 1, Owned: 64}, Degraded, "degraded: pending events: 100000 or more"},
		"one dead letter":                     {defaults, outbox.Stats{Dead: 1, Relays: 1, Owned: 64}, Degraded, "degraded: dead events: 1"},
		"a hundred":                           {defaults, outbox.Stats{Dead: 100, Relays: 1, Owned: 64}, Unhealthy, "unhealthy: dead events: 100"},
		"the worst counts":                    {defaults, outbox.Stats{OldestPending: time.Hour, Dead: 1, Relays: 1, Owned: 64}, Unhealthy, "unhealthy: the oldest pending event is 1h0m0s old; degraded: dead events: 1"},
		"equal thresholds leave out degraded": {own, outbox.Stats{OldestPending: time.Second, Relays: 1, Owned: 64}, Unhealthy, "unhealthy: the oldest pending event is 1s old"},
		"numbers of one's own":                {own, outbox.Stats{Pending: 7, Relays: 1, Owned: 64}, Unhealthy, "unhealthy: pending events: 7"},
		"counted that far reaches all":        {check(t, Config{UnhealthyPending: math.MaxInt}), outbox.Stats{Pending: 1, PendingCapped: true, Relays: 1, Owned: 64}, Unhealthy, "unhealthy: pending events: 1 or more"},
		"one dead letter may be":              {own, outbox.Stats{Dead: 1, Relays: 1, Owned: 64}, Healthy, ""},
		"no number is too great":              {own, outbox.Stats{Dead: 1_000_000, Relays: 1, Owned: 64}, Degraded, "degraded: dead events: 1000000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := c.check.Outbox(c.stats)
			if says := strings.Join(r.Problems, "; "); r.State != c.want || says != c.says || r.Problems == nil {
				t.Errorf("%s, %q, want %s, %q", r.State, says, c.want, c.says)
			}
		})
	}
}

func TestInboxIsAsItsWorstNumber(t *testing.T) {
	t.Parallel()
	defaults := check(t, Config{})
	for name, c := range map[string]struct {
		stats inbox.Stats
		want  State
		says  string
	}{
		"empty":                   {inbox.Stats{}, Healthy, ""},
		"a message retries":       {inbox.Stats{Retrying: 1, OldestParked: time.Second}, Healthy, ""},
		"for a minute":            {inbox.Stats{Retrying: 1, OldestParked: time.Minute}, Degraded, "degraded: the oldest message that is retried or waits for one is 1m0s old"},
		"an effect is not done":   {inbox.Stats{Effects: inbox.EffectStats{Oldest: time.Hour}}, Unhealthy, "unhealthy: the oldest effect that is not done is 1h0m0s old"},
		"all that wait count":     {inbox.Stats{Retrying: 5_000, Following: 2_000, Effects: inbox.EffectStats{Pending: 1_000, Doing: 1_000, Answered: 1_000}}, Degraded, "degraded: messages and effects that wait: 10000"},
		"one is too old":          {inbox.Stats{TooOld: 1}, Degraded, "degraded: messages and effects for an operator: 1"},
		"all for operators count": {inbox.Stats{Dead: 20, TooOld: 20, Altered: 20, Effects: inbox.EffectStats{Dead: 20, Uncertain: 20}}, Unhealthy, "unhealthy: messages and effects for an operator: 100"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := defaults.Inbox(c.stats)
			if says := strings.Join(r.Problems, "; "); r.State != c.want || says != c.says {
				t.Errorf("%s, %q, want %s, %q", r.State, says, c.want, c.says)
			}
		})
	}
}

func TestWorstOfNothingIsHealthy(t *testing.T) {
	t.Parallel()
	if Worst() != Healthy || Worst(Healthy, Degraded) != Degraded || Worst(Degraded, Unhealthy, Healthy) != Unhealthy {
		t.Error("another one")
	}
}

func TestThresholdsThatContradictAreRefusedByName(t *testing.T) {
	t.Parallel()
	_, err := New(Config{DegradedAge: -1, UnhealthyPending: -1, DegradedDead: -1})
	for _, field := range []string{"DegradedAge: -1ns is negative", "UnhealthyPending: -1 is negative", "DegradedDead: -1 is negative"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v, want %q", err, field)
		}
	}
	_, err = New(Config{UnhealthyAge: time.Second, UnhealthyPending: 1, DegradedDead: 3, UnhealthyDead: 2})
	for _, field := range []string{"UnhealthyAge: 1s is shorter", "UnhealthyPending: 1 is less", "UnhealthyDead: 2 is less"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v, want %q", err, field)
		}
	}
	check(t, Config{DegradedAge: time.Hour, DegradedDead: 1000, DegradedPending: math.MaxInt})
}
