package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxpair/boxpair/producer"
)

var replay = command{
	name: "replay", group: changing,
	summary: "send delivered events again, for a new consumer or a lost one",
	details: `Sends delivered events that are still retained again, under their old dispatch IDs: a consumer that has
applied an event skips the copy, a new consumer applies the event. Events of one key are sent in
order. The relays of the outbox send them; the command waits until all are queued. The events' history keeps
reason and operator. A filter or --all is required.

    boxpair replay --outbox postgres://operator@orders/shop --topic order.placed --from 2026-01-31

The exit status is 1 if nothing was replayed.`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		r := &replaying{}
		r.define(s)
		return r.run
	},
}

// replaying holds the settings of replay.
type replaying struct {
	databases
	display
	change

	replay producer.Replay
	ids    []idRange
	after  int
}

func (r *replaying) define(s *settings) {
	c := &r.replay
	r.databases.define(s, "the database of the outbox.", "")
	s.text(&c.Topic, "topic", "TOPIC", "only this topic.")
	s.text(&c.Key, "key", "KEY", "only this key.")
	s.add("from", envOf("from"), "TIME", "only events written, or due, since this time: 2026-01-31T12:00:00Z, 2026-01-31 (in UTC), or an age such as 24h.", false, moment(&c.From))
	s.add("to", envOf("to"), "TIME", "only events before this time.", false, moment(&c.To))
	s.count(&r.after, "after", "only events above this number, to continue an earlier replay.")
	s.count(&c.Limit, "limit", "the maximal number of events. Defaults to no limit.")
	s.count(&c.InQueue, "in-queue", "how many replayed events may wait in the queue at once. Defaults to 1000.")
	s.on(&c.All, "all", "select all events.")
	s.on(&c.Force, "force", "also events whose re-send horizon is over.")
	s.on(&r.yes, "yes", "do not ask for a confirmation. Without a terminal, no command asks.")
	s.on(&r.dry, "dry-run", "change nothing, and say how many events are selected.")
	r.defineReason(s, "the reason, in at most 1 KiB, for the history. Defaults to none.")
	r.display.define(s)
	s.idsAfterFlags("[ID…]", &r.ids)
}

func (r *replaying) run(ctx context.Context, p *process) (int, error) {
	if len(r.outboxes) != 1 {
		return exitFailed, fmt.Errorf("--outbox (or %s_URL): want exactly one, got %d", envOf("outbox"), len(r.outboxes))
	}
	if err := r.reasonable(); err != nil {
		return exitFailed, err
	}
	var report producer.ReplayReport
	err := r.each(ctx, false, func(s *operators) (err error) {
		report, err = r.replayed(ctx, p, s)
		return err
	})
	if r.json() {
		err = errors.Join(r.encode(p.stdout, map[string]any{"replayed": report.Replayed, "through": report.Through, "done": report.Done}), err)
	} else if r.dry {
		fmt.Fprintf(p.stderr, "%d selected; nothing was replayed\n", report.Replayed)
	} else {
		fmt.Fprintf(p.stderr, "%d replayed, up to number %d\n", report.Replayed, report.Through)
	}
	switch {
	case err != nil:
		return exitFailed, err
	case report.Replayed > 0:
		return exitOK, nil
	}
	r.misspelt(ctx, p.stderr, r.replay.Topic, "")
	if r.dry {
		return exitOK, nil
	}
	return exitFound, nil
}

// replayed replays the selection of an outbox, or only counts it.
func (r *replaying) replayed(ctx context.Context, p *process, s *operators) (report producer.ReplayReport, err error) {
	c := &r.replay
	if c.IDs, err = s.resolve(ctx, r.ids); err != nil {
		return report, err
	}
	if len(c.IDs) == 0 && c.Topic+c.Key == "" && c.From.IsZero() && c.To.IsZero() && !c.All {
		return report, errors.New("--all: no filter given: add one, or pass --all")
	}
	c.After = int64(r.after)
	if c.Reason, err = r.attributed(s); err != nil {
		return report, err
	}
	if r.dry || p.asks && !r.yes {
		n, err := count(ctx, s, c, progressOf(p.stderr, s.name))
		if err != nil {
			return report, err
		}
		if r.dry {
			report.Replayed = n
			return report, nil
		}
		if err := r.confirm(p, fmt.Sprintf("replay %d of %s?", n, s.name), int(n)); err != nil {
			return report, err
		}
	}
	say := progressOf(p.stderr, s.name)
	c.Progress = func(done producer.ReplayReport) { say(int(done.Replayed), int(done.Through)) }
	return s.outbox.Replay(ctx, *c)
}

// count counts the events that a replay selects.
func count(ctx context.Context, s *operators, r *producer.Replay, report func(done, all int)) (n int64, err error) {
	const first, most, longest = 1000, 1000, 10_000
	after := r.After
	for scan := first; ; scan = min(2*scan, longest) { // so that progress is soon told
		page, err := s.log.Retained(ctx, r.Selection, after, scan, most)
		if err != nil {
			return n, err
		}
		n, after = n+int64(len(page.Events)), page.Through
		if page.End || r.Limit > 0 && n >= int64(r.Limit) {
			if r.Limit > 0 {
				n = min(n, int64(r.Limit))
			}
			return n, nil
		}
		report(int(n), 0)
	}
}
