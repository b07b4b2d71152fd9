package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/outbox"
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

// printFleet prints the relays, and with --topics the topics that the relays send.
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
	g = q.grid(p, column{head: "topic", flexible: true}, column{head: "state"}, column{head: "since"}, column{head: "sent/s", number: true}, column{head: "in memory", number: true},
		column{head: "relay", wide: true}, column{head: "last error", flexible: true})
	for i := range relays {
		for k := range relays[i].Topics {
			t := &relays[i].Topics[k]
			g.add(t.Topic, t.State, q.when(t.Since), fmt.Sprintf("%.0f", t.SentPerSecond), t.RouteWaiting, relays[i].Name, t.LastError)
		}
	}
	return g.print(p.stdout)
}

// topicsStatus has the topics with waiting or dead events, in JSON.
type topicsStatus struct {
	Topics        []topicStatus `json:"topics,omitzero"`                // the one with the oldest event first
	WaitingCapped bool          `json:"topics_waiting_capped,omitzero"` // more wait than are counted
	DeadCapped    bool          `json:"topics_dead_capped,omitzero"`
}

// topicStatus is a topic with waiting or dead events, in JSON.
type topicStatus struct {
	Topic         string  `json:"topic"`
	Waiting       int64   `json:"waiting"`
	OldestSeconds float64 `json:"oldest_waiting_seconds"`
	Dead          int64   `json:"dead"`
}

// countTopics counts waiting and dead events by topic, up to 10,000 of each.
func countTopics(ctx context.Context, s *operators) (r topicsStatus, err error) {
	counts, err := s.topics.CountTopics(ctx, outbox.DefaultCountLimit)
	if err != nil {
		return r, err
	}
	slices.SortStableFunc(counts.Topics, func(a, b outbox.TopicCount) int { return cmp.Compare(b.Oldest, a.Oldest) })
	r = topicsStatus{make([]topicStatus, len(counts.Topics)), counts.WaitingCapped, counts.DeadCapped}
	for i, t := range counts.Topics {
		r.Topics[i] = topicStatus{t.Topic, t.Waiting, t.Oldest.Seconds(), t.Dead}
	}
	return r, nil
}

// printTopics prints how much waits of each topic.
func (q *inspection) printTopics(p *process, r topicsStatus) error {
	if len(r.Topics) == 0 {
		return nil
	}
	counted := func(n int64, capped bool) string {
		if capped && n > 0 {
			return fmt.Sprintf("over %d", n)
		}
		return fmt.Sprint(n)
	}
	g := q.grid(p, column{head: "topic", flexible: true}, column{head: "waiting", number: true}, column{head: "oldest"}, column{head: "dead", number: true})
	for i := range r.Topics {
		t, oldest := &r.Topics[i], "-"
		if t.OldestSeconds > 0 {
			oldest = short(seconds(t.OldestSeconds))
		}
		g.add(t.Topic, counted(t.Waiting, r.WaitingCapped), oldest, counted(t.Dead, r.DeadCapped))
	}
	err := g.print(p.stdout)
	if r.WaitingCapped || r.DeadCapped {
		q.wrap(p, p.stdout, "", "  ", fmt.Sprintf("Counting ends at about %d events: a topic with later events only is not listed.", outbox.DefaultCountLimit))
	}
	return err
}
