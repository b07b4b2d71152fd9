package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// fleet reads the relays. It returns no relays if the role may not read their reports.
func fleet(ctx context.Context, s *operators) ([]relayStatus, error) {
	relays, err := s.outbox.ListRelays(ctx)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" {
		err = nil
	}
	list := make([]relayStatus, len(relays))
	for i := range relays {
		list[i] = relayStatus{relays[i].Name, len(relays[i].Shards), relays[i].RelayReport}
	}
	return list, err
}

// printFleet prints the relays, and with --topics their topics.
func (q *inspection) printFleet(p *process, relays []relayStatus) error {
	if len(relays) == 0 {
		return nil
	}
	g := q.grid(p, column{head: "relay", flexible: true}, column{head: "host", flexible: true}, column{head: "shards", number: true}, column{head: "sent/s", number: true},
		column{head: "in flight", number: true}, column{head: "last confirm"}, column{head: "up"}, column{head: "version", wide: true})
	for i := range relays {
		r := &relays[i]
		g.add(r.Name, r.Host, r.Shards, fmt.Sprintf("%.0f", r.SentPerSecond), r.InFlight, q.when(r.LastConfirm), q.when(r.StartedAt), r.Version)
	}
	if err := g.print(p.stdout); err != nil || !q.topics {
		return err
	}
	g = q.grid(p, column{head: "topic", flexible: true}, column{head: "state"}, column{head: "since"}, column{head: "sent/s", number: true}, column{head: "waiting", number: true},
		column{head: "relay", wide: true}, column{head: "last error", flexible: true})
	for i := range relays {
		for k := range relays[i].Topics {
			t := &relays[i].Topics[k]
			g.add(t.Topic, t.State, q.when(t.Since), fmt.Sprintf("%.0f", t.SentPerSecond), t.RouteWaiting, relays[i].Name, t.LastError)
		}
	}
	return g.print(p.stdout)
}
