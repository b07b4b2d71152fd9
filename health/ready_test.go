package health

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
)

func TestProblemsOfARelayAreWhatAnOperatorMustKnow(t *testing.T) {
	t.Parallel()
	now, up := time.Now(), Connection{Name: "broker", Connected: true}
	for want, c := range map[string]struct {
		relay  relay.Health
		broker Connection
	}{
		"[]":                    {relay.Health{Running: true, LastRead: now}, up},
		"[relay: does not run]": {relay.Health{LastRead: now}, up},
		"[database: down]":      {relay.Health{Running: true, LastRead: now.Add(-1), DatabaseError: "down", DatabaseErrorAt: now}, up},
		"[database: gave no answer yet, or none for 2m0s]": {relay.Health{Running: true}, up},
		"[broker: is not connected yet]":                   {relay.Health{Running: true, LastRead: now}, Connection{Name: "broker"}},
		"[database: migrations are missing]":               {relay.Health{Running: true, LastRead: now, SchemaError: "migrations are missing"}, up},
		"[broker: blocked]":                                {relay.Health{Running: true, LastRead: now}, Connection{"broker", true, errors.New("blocked")}},
		"[route r: no queue]": {relay.Health{Running: true, LastRead: now, DatabaseError: "was down", DatabaseErrorAt: now.Add(-1), Routes: []relay.RouteHealth{
			{Route: "r", State: outbox.RouteRefusing, LastError: "no queue"}, {Route: "s"}, {Route: "t", State: outbox.RoutePaused, Overdue: true},
		}}, up},
	} {
		if got := fmt.Sprint(Relay(c.relay, time.Minute, c.broker)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestARelayIsReadyWhileTheDatabaseAnswersIt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		relay relay.Health
		poll  time.Duration
		ready bool
	}{
		"looks rarely":                {relay.Health{Shards: 64, Relays: 1, LastRead: ago(50 * time.Second)}, time.Minute, true},
		"looks rarely, renews often":  {relay.Health{Shards: 64, Relays: 1, LastRenewal: ago(time.Second)}, 0, true},
		"does not look":               {relay.Health{Shards: 64, Relays: 1, LastRead: ago(time.Minute)}, 0, false},
		"has no answer yet":           {relay.Health{}, 0, false},
		"has no shards":               {relay.Health{Relays: 80}, 0, true},
		"has none, and an outage":     {relay.Health{Relays: 80, DatabaseError: "down", DatabaseErrorAt: ago(time.Second)}, 0, false},
		"has none, after an outage":   {relay.Health{Relays: 80, DatabaseError: "down", DatabaseErrorAt: ago(time.Hour)}, 0, true},
		"has shards, after an outage": {relay.Health{Shards: 1, Relays: 1, LastRenewal: now, DatabaseError: "down", DatabaseErrorAt: ago(time.Second)}, 0, true},
	} {
		c.relay.Running = true
		if list := Relay(c.relay, c.poll); (len(list) == 0) != c.ready {
			t.Errorf("%s: %v", name, list)
		}
	}
}
