package invariant

import (
	"encoding/hex"
	"strings"

	"github.com/google/uuid"
)

func drained(s *State, found func(string, ...any)) {
	switch {
	case !s.Drained:
		found("not at rest after %v: %d pending, %d to be sent again, %d with the broker", s.DrainedIn, len(s.Pending), len(s.Live), s.Queued)
	case s.DrainedIn > s.DrainLimit:
		found("at rest after %v, later than %v", s.DrainedIn, s.DrainLimit)
	case len(s.Pending)+len(s.Live)+s.Queued > 0:
		found("said to be at rest with %d pending, %d to be sent again, %d with the broker", len(s.Pending), len(s.Live), s.Queued)
	}
	for _, c := range s.Consumers {
		if len(c.Live) > 0 {
			found("%s: %d messages are still to be handled", c.Name, len(c.Live))
		}
	}
}

// claimed compares the broker with the inbox: once the queues are empty, all messages have been
// acknowledged.
func claimed(s *State, found func(string, ...any)) {
	if s.Forgets {
		return
	}
	for _, c := range s.Consumers {
		kept := set(c.Claims, c.Live, c.Aside)
		if s.Queued == 0 {
			for _, a := range s.Wire {
				if !has(kept, a.Dispatch) {
					found("%s: dispatch %s was acknowledged and is not in the inbox", c.Name, a.Dispatch)
					kept[a.Dispatch] = struct{}{}
				}
			}
		}
		claims := set(c.Claims)
		applied := make(map[uuid.UUID]struct{}, len(c.Effects))
		for _, e := range c.Effects {
			applied[e.Dispatch] = struct{}{}
			if !has(claims, e.Dispatch) {
				found("%s: dispatch %s has an effect and no claim", c.Name, e.Dispatch)
			}
		}
		aside := set(c.Live, c.Aside)
		for _, id := range c.Claims {
			if !has(applied, id) && !has(aside, id) {
				found("%s: dispatch %s is claimed and has no effect", c.Name, id)
			}
		}
	}
}

func receipts(s *State, found func(string, ...any)) {
	for _, c := range s.Consumers {
		if c.Receipt == nil {
			continue
		}
		written := set(c.Receipts)
		if len(written) != len(c.Receipts) {
			found("%s: an event is written twice", c.Name)
		}
		for _, e := range c.Effects {
			id := c.Receipt(e.Dispatch)
			if !has(written, id) {
				found("%s: dispatch %s has an effect, and its event was not written", c.Name, e.Dispatch)
			}
			delete(written, id)
		}
		// A second effect of a dispatch has no receipt left; the repetition check counts it.
		if n := len(written); n > 0 {
			found("%s: %d events of a handler without an effect", c.Name, n)
		}
	}
}

// totals computes the consumers' required totals from the orders alone.
func totals(s *State, found func(string, ...any)) {
	outbox := set(s.Pending, s.Live, s.Dead)
	for _, c := range s.Consumers {
		missing, claims := set(c.Live, c.Aside), set(c.Claims)
		want := make(map[string]Total)
		for _, o := range s.Orders {
			if has(missing, o.Dispatch) || has(outbox, o.Dispatch) && !has(claims, o.Dispatch) {
				continue
			}
			t, ok := want[o.Key]
			if !ok {
				t.Least, t.Most = o.Amount, o.Amount
			}
			t.Count, t.Sum = t.Count+1, t.Sum+o.Amount
			t.Least, t.Most = min(t.Least, o.Amount), max(t.Most, o.Amount)
			want[o.Key] = t
		}
		for key, t := range want {
			if got := c.Totals[key]; got != t {
				found("%s: key %s: %+v, and the orders say %+v", c.Name, key, got, t)
			}
		}
		for key := range c.Totals {
			if _, ok := want[key]; !ok {
				found("%s: a total of key %s, which has no orders", c.Name, key)
			}
		}
	}
}

func bounded(s *State, found func(string, ...any)) {
	for _, p := range s.Processes {
		if p.MostHeap > 0 && p.PeakHeap > p.MostHeap {
			found("%s: %d bytes of heap, more than %d", p.Name, p.PeakHeap, p.MostHeap)
		}
		if p.Window > 0 && p.PeakInFlight > p.Window {
			found("%s: %d in flight, more than the window of %d", p.Name, p.PeakInFlight, p.Window)
		}
		if p.MostInMemory > 0 && p.PeakInMemory > p.MostInMemory {
			found("%s: %d events in memory, more than %d", p.Name, p.PeakInMemory, p.MostInMemory)
		}
	}
}

func goroutines(s *State, found func(string, ...any)) {
	for _, p := range s.Processes {
		if p.Leaked != "" {
			found("%s left goroutines behind: %s", p.Name, p.Leaked)
		}
	}
}

func secrets(s *State, found func(string, ...any)) {
	for where, text := range s.Texts {
		for _, secret := range s.Secrets {
			for _, form := range []string{secret, hex.EncodeToString([]byte(secret))} {
				if at := strings.Index(text, form); at >= 0 {
					found("%s tells a secret: …%s…", where, text[max(0, at-200):min(len(text), at+len(form)+50)])
				}
			}
		}
	}
}
