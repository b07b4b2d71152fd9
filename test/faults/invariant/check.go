package invariant

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// check is one invariant. run reports each violation to found.
type check struct {
	name string
	run  func(s *State, found func(format string, args ...any))
}

var checks = []check{
	{"atomic", atomic},
	{"loss", loss},
	{"duplicate", duplicate},
	{"phantom", phantom},
	{"order", order},
	{"wire", wire},
	{"conserved", conserved},
	{"drained", drained},
	{"claimed", claimed},
	{"receipts", receipts},
	{"totals", totals},
	{"bounded", bounded},
	{"goroutines", goroutines},
	{"secrets", secrets},
}

// most is how many violations of one check are reported.
const most = 5

// Names returns the names of the checks, in their order.
func Names() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.name
	}
	return names
}

// Check returns the violations: at most a few of each kind, followed by the number of further ones.
func Check(s *State) []Violation {
	var all []Violation
	for _, c := range checks {
		n := 0
		c.run(s, func(format string, args ...any) {
			if n++; n <= most {
				all = append(all, Violation{c.name, fmt.Sprintf(format, args...)})
			}
		})
		if n > most {
			all = append(all, Violation{c.name, fmt.Sprintf("and %d more", n-most)})
		}
	}
	return all
}

// Invalid returns the required work that was not done, or "": a run without a fault, or with too
// little traffic, proves nothing.
func Invalid(s *State) string {
	var missing []string
	for _, m := range []struct {
		what       string
		did, needs int
	}{
		{"orders", s.Did.Orders, s.Needed.Orders}, {"faults", s.Did.Faults, s.Needed.Faults}, {"copies", s.Did.Copies, s.Needed.Copies},
	} {
		if m.did < m.needs {
			missing = append(missing, fmt.Sprintf("%d %s, fewer than %d", m.did, m.what, m.needs))
		}
	}
	if len(s.Orders) == 0 {
		missing = append(missing, "nothing was placed")
	}
	return strings.Join(missing, "; ")
}

func atomic(s *State, found func(string, ...any)) {
	orders := make(map[uuid.UUID]Order, len(s.Orders))
	for _, o := range s.Orders {
		if _, twice := orders[o.Dispatch]; twice {
			found("order of dispatch %s is there twice", o.Dispatch)
		}
		orders[o.Dispatch] = o
	}
	seen := make(map[uuid.UUID]struct{}, len(s.Events))
	for _, e := range s.Events {
		if _, twice := seen[e.Dispatch]; twice {
			found("event %s is there twice", e.Dispatch)
		}
		seen[e.Dispatch] = struct{}{}
		if o, ok := orders[e.Dispatch]; !ok {
			found("event %s of key %s has no order", e.Dispatch, e.Key)
		} else if o != Order(e) {
			found("event %s tells of %+v, and the order is %+v", e.Dispatch, e, o)
		}
	}
	for _, o := range s.Orders {
		if _, ok := seen[o.Dispatch]; !ok {
			found("order %d of key %s has no event", o.N, o.Key)
		}
	}
}

func loss(s *State, found func(string, ...any)) {
	outbox := set(s.Pending, s.Live, s.Dead)
	for _, c := range s.Consumers {
		kept := set(c.Live, c.Aside)
		for _, e := range c.Effects {
			kept[e.Dispatch] = struct{}{}
		}
		for _, o := range s.Orders {
			if !has(kept, o.Dispatch) && !has(outbox, o.Dispatch) {
				found("%s: order %d of key %s (dispatch %s) is lost", c.Name, o.N, o.Key, o.Dispatch)
			}
		}
	}
}

func duplicate(s *State, found func(string, ...any)) {
	for _, c := range s.Consumers {
		times := make(map[uuid.UUID]int, len(c.Effects))
		for _, e := range c.Effects {
			if times[e.Dispatch]++; times[e.Dispatch] == 2 {
				found("%s: dispatch %s of key %s has more than one effect", c.Name, e.Dispatch, e.Key)
			}
		}
	}
}

func phantom(s *State, found func(string, ...any)) {
	orders := make(map[uuid.UUID]Order, len(s.Orders))
	for _, o := range s.Orders {
		orders[o.Dispatch] = o
	}
	for _, c := range s.Consumers {
		for _, e := range c.Effects {
			if o, ok := orders[e.Dispatch]; !ok {
				found("%s: an effect of dispatch %s, which has no order", c.Name, e.Dispatch)
			} else if o != Order(e) {
				found("%s: effect %+v of the order %+v", c.Name, e, o)
			}
		}
		for _, id := range slices.Concat(c.Live, c.Aside) {
			if _, ok := orders[id]; !ok {
				found("%s: dispatch %s is parked and has no order", c.Name, id)
			}
		}
	}
}

// order checks first effects only, since another check finds second effects. An event that is set
// aside leaves a gap.
func order(s *State, found func(string, ...any)) {
	if s.Unordered {
		return
	}
	for _, c := range s.Consumers {
		gaps := s.gaps(&c)
		last, seen := make(map[string]int64), make(map[uuid.UUID]struct{}, len(c.Effects))
		for _, e := range c.Effects {
			if has(seen, e.Dispatch) {
				continue
			}
			seen[e.Dispatch] = struct{}{}
			next := last[e.Key] + 1
			for gaps[e.Key][next] && next < e.N {
				next++
			}
			if e.N != next {
				found("%s: key %s: %d came after %d", c.Name, e.Key, e.N, last[e.Key])
			}
			last[e.Key] = e.N
		}
	}
}

// gaps returns, for each key, the places of orders that a consumer has not applied for a reason
// that another check judges.
func (s *State) gaps(c *Consumer) map[string]map[int64]bool {
	missing := set(s.Pending, s.Live, s.Dead, c.Live, c.Aside)
	gaps := make(map[string]map[int64]bool)
	for _, o := range s.Orders {
		if has(missing, o.Dispatch) {
			if gaps[o.Key] == nil {
				gaps[o.Key] = make(map[int64]bool)
			}
			gaps[o.Key][o.N] = true
		}
	}
	return gaps
}

func wire(s *State, found func(string, ...any)) {
	if s.Wire == nil || s.Reordered {
		return
	}
	place := make(map[uuid.UUID]int64, len(s.Orders))
	for _, o := range s.Orders {
		place[o.Dispatch] = o.N
	}
	last, seen := make(map[string]int64), make(map[uuid.UUID]struct{})
	for _, a := range s.Wire {
		n, ok := place[a.Dispatch]
		if !ok {
			found("dispatch %s has no order", a.Dispatch)
			continue
		}
		if has(seen, a.Dispatch) {
			continue
		}
		seen[a.Dispatch] = struct{}{}
		if n < last[a.Key] {
			found("key %s: %d was first sent after %d", a.Key, n, last[a.Key])
		}
		last[a.Key] = n
	}
}

func conserved(s *State, found func(string, ...any)) {
	inOutbox := append(append(append([]uuid.UUID(nil), s.Pending...), s.Live...), s.Dead...)
	outbox := set(inOutbox)
	if len(outbox) != len(inOutbox) {
		found("%d events are at two places of the outbox", len(inOutbox)-len(outbox))
	}
	for _, c := range s.Consumers {
		applied := make(map[uuid.UUID]struct{}, len(c.Effects))
		for _, e := range c.Effects {
			applied[e.Dispatch] = struct{}{}
		}
		aside := set(c.Live, c.Aside)
		for id := range aside {
			if has(applied, id) {
				found("%s: dispatch %s is applied and parked", c.Name, id)
			}
		}
		pending := 0
		for id := range outbox {
			if !has(applied, id) && !has(aside, id) {
				pending++
			}
		}
		if sum := len(applied) + len(aside) + pending; sum != len(s.Orders) {
			found("%s: %d orders, and %d applied + %d set aside + %d pending = %d", c.Name, len(s.Orders), len(applied), len(aside), pending, sum)
		}
	}
}

func set(lists ...[]uuid.UUID) map[uuid.UUID]struct{} {
	m := make(map[uuid.UUID]struct{})
	for _, list := range lists {
		for _, id := range list {
			m[id] = struct{}{}
		}
	}
	return m
}

func has(m map[uuid.UUID]struct{}, id uuid.UUID) bool {
	_, ok := m[id]
	return ok
}
