package invariant

import (
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

func id(n int) uuid.UUID { return uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n)) }

func receipt(dispatch uuid.UUID) uuid.UUID { return uuid.NewSHA1(uuid.Nil, dispatch[:]) }

// sound returns a state in which all is well: six orders of two keys, one of which the
// consumer has set aside.
func sound() *State {
	s := &State{
		Drained: true, DrainedIn: time.Second, DrainLimit: time.Minute,
		Secrets: []string{"hush"}, Texts: map[string]string{"a log": "nothing to see"},
		Processes: []Process{{Name: "relay", PeakHeap: 1, MostHeap: 2, PeakInFlight: 3, Window: 4, PeakInMemory: 5, MostInMemory: 6}},
		Needed:    Work{Orders: 6, Faults: 1, Copies: 1}, Did: Work{Orders: 6, Faults: 1, Copies: 1},
	}
	c := Consumer{Name: "stock", Totals: make(map[string]Total), Receipt: receipt}
	for i := range 6 {
		o := Order{Dispatch: id(i), Key: fmt.Sprint("key", i%2), N: int64(i/2 + 1), Amount: int64(10*i - 20)}
		s.Orders = append(s.Orders, o)
		s.Events = append(s.Events, Event(o))
		s.Wire = append(s.Wire, Arrival{o.Dispatch, o.Key})
		c.Claims = append(c.Claims, o.Dispatch)
		if i == 2 {
			c.Aside = append(c.Aside, o.Dispatch)
			continue
		}
		c.Effects = append(c.Effects, Effect(o))
		c.Receipts = append(c.Receipts, receipt(o.Dispatch))
		t, ok := c.Totals[o.Key]
		if !ok {
			t.Least, t.Most = o.Amount, o.Amount
		}
		c.Totals[o.Key] = Total{t.Count + 1, t.Sum + o.Amount, min(t.Least, o.Amount), max(t.Most, o.Amount)}
	}
	s.Wire = append(s.Wire, s.Wire[0]) // a copy
	s.Consumers = []Consumer{c}
	return s
}

func TestSoundStateHasNoViolations(t *testing.T) {
	t.Parallel()
	if v := Check(sound()); len(v) > 0 {
		t.Fatalf("found %v", v)
	}
	if why := Invalid(sound()); why != "" {
		t.Fatalf("invalid: %s", why)
	}
}

// planted is what is put into a sound state for each check to find.
var planted = []struct {
	check, name string
	plant       func(s *State, c *Consumer)
}{
	{"atomic", "an order without an event", func(s *State, _ *Consumer) { s.Events = s.Events[1:] }},
	{"atomic", "an event without an order", func(s *State, _ *Consumer) { s.Orders = s.Orders[1:] }},
	{"atomic", "an event with other content", func(s *State, _ *Consumer) { s.Events[0].Amount++ }},
	{"atomic", "an event that is there twice", func(s *State, _ *Consumer) { s.Events = append(s.Events, s.Events[0]) }},
	{"atomic", "an order that is there twice", func(s *State, _ *Consumer) { s.Orders = append(s.Orders, s.Orders[0]) }},
	{"loss", "no effect", func(_ *State, c *Consumer) { c.Effects = c.Effects[1:] }},
	{"loss", "nothing set aside", func(_ *State, c *Consumer) { c.Aside = nil }},
	{"duplicate", "two effects", func(_ *State, c *Consumer) { c.Effects = append(c.Effects, c.Effects[0]) }},
	{"phantom", "an effect from nowhere", func(_ *State, c *Consumer) { c.Effects = append(c.Effects, Effect{Dispatch: id(99)}) }},
	{"phantom", "an effect of other content", func(_ *State, c *Consumer) { c.Effects[0].Amount++ }},
	{"phantom", "a parked message from nowhere", func(_ *State, c *Consumer) { c.Aside = append(c.Aside, id(99)) }},
	{"order", "two effects in the wrong order", func(_ *State, c *Consumer) {
		c.Effects[1], c.Effects[2] = c.Effects[2], c.Effects[1] // both of key1
	}},
	{"order", "a gap", func(_ *State, c *Consumer) { c.Effects = slices.Delete(c.Effects, 2, 3) }},
	{"wire", "first deliveries in the wrong order", func(s *State, _ *Consumer) {
		s.Wire[1], s.Wire[3] = s.Wire[3], s.Wire[1]
	}},
	{"wire", "a delivery from nowhere", func(s *State, _ *Consumer) { s.Wire = append(s.Wire, Arrival{id(99), "key0"}) }},
	{"conserved", "applied and parked", func(_ *State, c *Consumer) { c.Aside = append(c.Aside, c.Effects[0].Dispatch) }},
	{"conserved", "pending and dead", func(s *State, _ *Consumer) {
		s.Pending, s.Dead = []uuid.UUID{id(0)}, []uuid.UUID{id(0)}
	}},
	{"conserved", "fewer than were placed", func(_ *State, c *Consumer) { c.Effects = c.Effects[1:] }},
	{"drained", "never", func(s *State, _ *Consumer) { s.Drained = false }},
	{"drained", "late", func(s *State, _ *Consumer) { s.DrainedIn = time.Hour }},
	{"drained", "something pending", func(s *State, _ *Consumer) { s.Pending = []uuid.UUID{id(0)} }},
	{"drained", "something with the broker", func(s *State, _ *Consumer) { s.Queued = 1 }},
	{"drained", "something to be handled", func(_ *State, c *Consumer) { c.Live = append(c.Live, c.Aside[0]) }},
	{"claimed", "acknowledged and not claimed", func(_ *State, c *Consumer) { c.Claims = c.Claims[1:] }},
	{"claimed", "claimed without an effect", func(_ *State, c *Consumer) { c.Effects = c.Effects[1:] }},
	{"receipts", "an effect without its event", func(_ *State, c *Consumer) { c.Receipts = c.Receipts[1:] }},
	{"receipts", "an event without an effect", func(_ *State, c *Consumer) { c.Receipts = append(c.Receipts, id(99)) }},
	{"receipts", "an event that is there twice", func(_ *State, c *Consumer) { c.Receipts = append(c.Receipts, c.Receipts[0]) }},
	{"totals", "a sum that is off", func(_ *State, c *Consumer) { c.Totals["key0"] = Total{} }},
	{"totals", "a total of no orders", func(_ *State, c *Consumer) { c.Totals["key9"] = Total{} }},
	{"bounded", "heap", func(s *State, _ *Consumer) { s.Processes[0].PeakHeap = 3 }},
	{"bounded", "in flight", func(s *State, _ *Consumer) { s.Processes[0].PeakInFlight = 5 }},
	{"bounded", "in memory", func(s *State, _ *Consumer) { s.Processes[0].PeakInMemory = 7 }},
	{"goroutines", "one", func(s *State, _ *Consumer) { s.Processes[0].Leaked = "goroutine 7" }},
	{"secrets", "in the clear", func(s *State, _ *Consumer) { s.Texts["a log"] = "password=hush" }},
	{"secrets", "in hex", func(s *State, _ *Consumer) { s.Texts["a log"] = hex.EncodeToString([]byte("a hush!")) }},
}

func TestPlantedViolationIsFound(t *testing.T) {
	t.Parallel()
	tried := make(map[string]bool)
	for _, p := range planted {
		tried[p.check] = true
		t.Run(p.check+"/"+p.name, func(t *testing.T) {
			t.Parallel()
			s := sound()
			p.plant(s, &s.Consumers[0])
			if !slices.ContainsFunc(Check(s), func(v Violation) bool { return v.Check == p.check }) {
				t.Fatalf("%s found nothing: %v", p.check, Check(s))
			}
		})
	}
	for _, name := range Names() {
		if !tried[name] {
			t.Errorf("nothing is planted for %s", name)
		}
	}
}

func TestRunWithoutWorkIsInvalid(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*State){
		"few orders":   func(s *State) { s.Did.Orders-- },
		"no fault":     func(s *State) { s.Did.Faults = 0 },
		"no copies":    func(s *State) { s.Did.Copies = 0 },
		"nothing done": func(s *State) { *s = State{} },
	} {
		s := sound()
		spoil(s)
		if Invalid(s) == "" {
			t.Errorf("%s: valid", name)
		}
	}
}

func TestManyViolationsAreToldInFewWords(t *testing.T) {
	t.Parallel()
	s := sound()
	for i := range 1000 {
		s.Wire = append(s.Wire, Arrival{Dispatch: id(100 + i)})
	}
	found := slices.DeleteFunc(Check(s), func(v Violation) bool { return v.Check != "wire" })
	if len(found) != most+1 || found[most].What != "and 995 more" {
		t.Fatalf("found %v", found)
	}
}
