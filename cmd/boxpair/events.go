package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

var events = command{
	name: "events", group: looking,
	summary: "list events in any state, the latest first, or follow them",
	details: `Lists the latest events of outboxes in any state, or those that flags select. A search looks at
--scan events at most, and says where it stopped; --before continues it. --follow prints new events
as they are written, until interrupted. What is no dispatch ID is taken as a key.

    boxpair events --outbox postgres://monitor@orders/shop --state pending,retrying
    boxpair events --outbox postgres://monitor@orders/shop --topic order.placed --follow`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		v := &viewing{every: time.Second}
		v.define(s)
		return v.run
	},
}

// viewing holds the settings of events.
type viewing struct {
	databases
	display

	query  outbox.Query
	follow bool
	every  time.Duration
	ids    []idRange
	before int
}

func (v *viewing) define(s *settings) {
	q := &v.query
	v.databases.define(s, "the database of an outbox. May be given several times.", "")
	s.add("state", envOf("state"), "STATE,…", "pending, deferred, retrying, following, dead, discarded, cancelled or delivered. Defaults to all.", false, v.setStates)
	s.list[len(s.list)-1].values = stateNames()
	s.text(&q.Topic, "topic", "TOPIC", "only this topic.")
	s.text(&q.Key, "key", "KEY", "only this key.")
	s.text(&q.Source, "source", "SOURCE", "only this source.")
	s.text(&q.CorrelationID, "correlation", "ID", "only this correlation ID.")
	s.text(&q.Error, "error", "TEXT", "only if the last error contains this text.")
	s.add("since", envOf("since"), "TIME", "only if written since this time: 2026-01-31T12:00:00Z, 2026-01-31 (in UTC), or an age such as 24h or 7d.", false, moment(&q.Since))
	s.add("until", envOf("until"), "TIME", "only if written before this time.", false, moment(&q.Until))
	s.count(&v.before, "before", "only events below this number, to continue an earlier list.")
	s.count(&q.Limit, "limit", "the maximal number of events. Defaults to 100.")
	s.count(&q.Scan, "scan", "how many events a search without IDs and states looks at. Defaults to 20000.")
	s.on(&v.follow, "follow", "print new events as they are written.")
	v.display.define(s)
	s.operands = "[ID…|KEY]"
	s.operandsFrom = v.setOperands
}

// setOperands takes dispatch IDs, or one key.
func (v *viewing) setOperands(args []string) error {
	set := rangesTo(&v.ids)
	if len(args) == 1 && v.query.Key == "" && set(args[0]) != nil {
		v.query.Key = args[0]
		return nil
	}
	v.ids = nil
	for _, text := range args {
		if err := set(text); err != nil {
			return fmt.Errorf("%s: %w, or one key alone", plain(text), err)
		}
	}
	return nil
}

// states are the states of events.
var states = []outbox.State{
	outbox.PendingState, outbox.DeferredState, outbox.Retrying, outbox.Following, outbox.Dead, outbox.Discarded, outbox.Cancelled, outbox.DeliveredState,
}

func stateNames() []string {
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	return names
}

func (v *viewing) setStates(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		state := outbox.State(strings.TrimSpace(name))
		if !slices.Contains(states, state) {
			return fmt.Errorf("unknown state %q", string(state))
		}
		v.query.States = append(v.query.States, state)
	}
	return nil
}

func (v *viewing) run(ctx context.Context, p *process) (int, error) {
	if len(v.outboxes) == 0 {
		return exitFailed, fmt.Errorf("--outbox (or %s_URL): is missing", envOf("outbox"))
	}
	v.query.Before = int64(v.before)
	if v.follow {
		return v.tail(ctx, p)
	}
	all := []seenEvent{}
	ids := []uuid.UUID{}
	x := &explainer{display: v.display}
	err := v.each(ctx, true, func(s *operators) error {
		q := v.query
		var err error
		q.IDs, err = s.resolve(ctx, v.ids)
		if errors.Is(err, errNotHere) && len(v.ids) == 1 && q.Key == "" { // a key of digits
			q.Key, err = v.ids[0].text, nil
		}
		if err != nil {
			return err
		}
		found, err := s.events.Search(ctx, q)
		if err != nil {
			return err
		}
		for i := range found.Events {
			all, ids = append(all, x.seen(s, &found.Events[i])), append(ids, found.Events[i].ID)
		}
		if found.Before > 0 {
			fmt.Fprintf(p.stderr, "%s: more may be below number %d: pass --before %d\n", s.name, found.Before, found.Before)
		}
		return nil
	})
	err = errors.Join(v.print(p, all, ids), err)
	if len(all) == 0 && err == nil && !v.json() {
		v.misspelt(ctx, p.stderr, v.query.Topic, "")
	}
	return exitOK, err
}

// listed is an event with its dispatch ID, in JSON.
type listed struct {
	ID uuid.UUID `json:"id"`
	seenEvent
}

func (v *viewing) print(p *process, all []seenEvent, ids []uuid.UUID) error {
	if v.json() {
		list := make([]listed, len(all))
		for i := range all {
			list[i] = listed{ids[i], all[i]}
		}
		return v.encode(p.stdout, map[string][]listed{"events": list})
	}
	if len(all) == 0 {
		fmt.Fprintln(p.stderr, "nothing matches the filter")
		return nil
	}
	return v.table(all, ids, p).print(p.stdout)
}

func (v *viewing) table(all []seenEvent, ids []uuid.UUID, p *process) *grid {
	g := v.grid(p, column{head: "id"}, column{head: "number", number: true, wide: true}, column{head: "state"}, column{head: "written"},
		column{head: "topic", flexible: true}, column{head: "key", flexible: true}, column{head: "database", wide: true}, column{head: "why", flexible: true})
	for i := range all {
		e := &all[i]
		why := e.Why
		if e.State == string(outbox.DeliveredState) {
			why = "-"
			if e.DeliveredAt != nil {
				why = "after " + short(e.DeliveredAt.Sub(e.WrittenAt))
			}
		} else if e.LastError != "" {
			why += ": " + e.LastError
		}
		g.add(v.id(ids[i]), e.Seq, e.State, v.when(e.WrittenAt), e.Topic, e.Key, e.Database, why)
	}
	return g
}

const (
	// lookedBack is how many of the latest events tail remembers: an event that commits later than an event
	// with a higher number is found as long as the event is among them.
	lookedBack = 200
	// mostFollowed is how many events of one look are printed.
	mostFollowed = 100 * lookedBack
)

// tail prints the events that are written from now on. After the first look, it survives errors of a
// database: databases come back.
func (v *viewing) tail(ctx context.Context, p *process) (int, error) {
	logs := make(map[*target]*followed)
	again := time.NewTicker(v.every)
	defer again.Stop()
	said := ""
	for first := true; ; first = false {
		var broken error // of the output
		err := v.each(ctx, !first, func(s *operators) error {
			log := logs[s.target]
			if log == nil {
				log = &followed{}
			}
			fresh, err := v.look(ctx, p, s, log)
			if err == nil {
				logs[s.target] = log
				broken = errors.Join(broken, v.stream(p, fresh))
			}
			return err
		})
		switch {
		case ctx.Err() != nil:
			return exitOK, nil // the end of a watch is no failure
		case broken != nil:
			return exitFailed, broken
		case err == nil:
			said = ""
		case first:
			return exitFailed, err
		case plain(err.Error()) != said:
			said = plain(err.Error())
			fmt.Fprintln(p.stderr, said)
		}
		select {
		case <-ctx.Done():
			return exitOK, nil
		case <-again.C:
		}
	}
}

// followed is what tail knows of an outbox.
type followed struct {
	known map[uuid.UUID]bool // events from floor on; nil before the first look
	floor int64              // no event below this number is new
}

// look returns the events that are new since the last look, the first event first. On an error, the next
// look finds them again.
func (v *viewing) look(ctx context.Context, p *process, s *operators, log *followed) (fresh []listed, err error) {
	x, q, next := &explainer{display: v.display}, v.query, *log
	q.Limit, next.known = lookedBack, make(map[uuid.UUID]bool)
	for page := 0; ; page++ {
		found, err := s.events.Search(ctx, q)
		if err != nil {
			return nil, err
		}
		if page == 0 {
			next.floor = max(log.floor, found.Before)
		}
		for i := range found.Events {
			e := &found.Events[i]
			if e.Seq >= next.floor {
				next.known[e.ID] = true
			}
			if log.known != nil && !log.known[e.ID] && e.Seq >= log.floor {
				fresh = append(fresh, listed{e.ID, x.seen(s, e)})
			}
		}
		if log.known == nil || found.Before <= log.floor {
			break
		}
		if len(fresh) >= mostFollowed {
			fmt.Fprintf(p.stderr, "%s: more than %d events are new: the first ones are left out: pass --before %d without --follow\n", s.name, mostFollowed, found.Before)
			break
		}
		q.Before = found.Before
	}
	*log = next
	slices.Reverse(fresh)
	return fresh, nil
}

// stream prints events one by one, as lines or as one JSON object each.
func (v *viewing) stream(p *process, fresh []listed) error {
	for i := range fresh {
		e := &fresh[i]
		if v.json() {
			if err := v.encode(p.stdout, e); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(p.stdout, "%s  %s  %s  %s%s\n", instant(e.WrittenAt, "-"), e.ID, e.State, plain(e.Topic), plain(keyed(e.Key)))
	}
	return nil
}
