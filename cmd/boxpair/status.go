package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/boxpair/boxpair/producer"
)

var status = command{
	name:    "status",
	summary: "show what waits in an outbox",
	details: `Prints how many events wait, for how long the oldest, how many are parked, and how many relays are there.

    boxpair status -outbox postgres://monitor@orders/shop -json`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		q := &selection{}
		asJSON := false
		s.urls(&q.outboxes, "outbox", "the database whose outbox is looked at.")
		s.on(&asJSON, "json", "print one JSON object instead of a table.")
		q.places.define(s)
		return func(ctx context.Context, p *process) (int, error) {
			if len(q.outboxes) != 1 {
				return exitFailed, fmt.Errorf("-outbox (or %s_URL): want one, there are %d", envOf("outbox"), len(q.outboxes))
			}
			err := q.with(ctx, func(s *operators) error {
				stats, err := s.outbox.Stats(ctx)
				if err != nil {
					return err
				}
				return printStats(p, &stats, asJSON)
			})
			if err != nil {
				return exitFailed, err
			}
			return exitOK, nil
		}
	},
}

// outboxStatus is the answer of status in JSON.
type outboxStatus struct {
	Pending       int64   `json:"pending"`
	PendingCapped bool    `json:"pending_capped"`
	OldestSeconds float64 `json:"oldest_pending_seconds"`
	Retrying      int64   `json:"retrying"`
	Following     int64   `json:"following"`
	Dead          int64   `json:"dead"`
	Owned         int     `json:"owned_shards"`
	Relays        int     `json:"relays"`
}

func printStats(p *process, s *producer.Stats, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(p.stdout).Encode(outboxStatus{
			s.Pending, s.PendingCapped, s.OldestPending.Seconds(), s.Retrying, s.Following, s.Dead, s.Owned, s.Relays,
		})
	}
	more := ""
	if s.PendingCapped {
		more = " or more"
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "pending\t%d%s\toldest %v\n", s.Pending, more, s.OldestPending.Round(time.Millisecond))
	fmt.Fprintf(w, "retrying\t%d\t\nfollowing\t%d\t\ndead\t%d\t\n", s.Retrying, s.Following, s.Dead)
	fmt.Fprintf(w, "relays\t%d\t%d shards owned\n", s.Relays, s.Owned)
	return w.Flush()
}
