package health

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer"
)

func TestProblemsOfARelayAreWhatAnOperatorMustKnow(t *testing.T) {
	t.Parallel()
	now, up := time.Now(), Connection{Name: "broker", Connected: true}
	for want, c := range map[string]struct {
		relay  producer.Health
		broker Connection
	}{
		"[]":                    {producer.Health{Running: true, LastRead: now}, up},
		"[relay: does not run]": {producer.Health{LastRead: now}, up},
		"[database: down]":      {producer.Health{Running: true, LastRead: now.Add(-1), DatabaseError: "down", DatabaseErrorAt: now}, up},
		"[database: gave no answer yet, or none for 2m0s]": {producer.Health{Running: true}, up},
		"[broker: is not connected yet]":                   {producer.Health{Running: true, LastRead: now}, Connection{Name: "broker"}},
		"[database: migrations are missing]":               {producer.Health{Running: true, LastRead: now, SchemaError: "migrations are missing"}, up},
		"[broker: blocked]":                                {producer.Health{Running: true, LastRead: now}, Connection{"broker", true, errors.New("blocked")}},
		"[route r: no queue]": {producer.Health{Running: true, LastRead: now, DatabaseError: "was down", DatabaseErrorAt: now.Add(-1), Routes: []producer.RouteHealth{
			{Route: "r", Paused: true, LastError: "no queue"}, {Route: "s"},
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
		relay producer.Health
		poll  time.Duration
		ready bool
	}{
		"looks rarely":                {producer.Health{Shards: 64, Relays: 1, LastRead: ago(50 * time.Second)}, time.Minute, true},
		"looks rarely, renews often":  {producer.Health{Shards: 64, Relays: 1, LastRenewal: ago(time.Second)}, 0, true},
		"does not look":               {producer.Health{Shards: 64, Relays: 1, LastRead: ago(time.Minute)}, 0, false},
		"has no answer yet":           {producer.Health{}, 0, false},
		"has no shards":               {producer.Health{Relays: 80}, 0, true},
		"has none, and an outage":     {producer.Health{Relays: 80, DatabaseError: "down", DatabaseErrorAt: ago(time.Second)}, 0, false},
		"has none, after an outage":   {producer.Health{Relays: 80, DatabaseError: "down", DatabaseErrorAt: ago(time.Hour)}, 0, true},
		"has shards, after an outage": {producer.Health{Shards: 1, Relays: 1, LastRenewal: now, DatabaseError: "down", DatabaseErrorAt: ago(time.Second)}, 0, true},
	} {
		c.relay.Running = true
		if list := Relay(c.relay, c.poll); (len(list) == 0) != c.ready {
			t.Errorf("%s: %v", name, list)
		}
	}
}
