package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv/service"
	"github.com/boxpair/boxpair/producer"
)

func takeoverScenario() scenario {
	return scenario{
		name: "takeover", unit: "events",
		about: "two relay processes on defaults, of which one is killed with SIGKILL: from the signal to the first event of its shards",
		variants: []variant{
			{"direct", "received; relays that have connections of their own", "", 7, 3, takeover{}.measure},
			{"pooled", "received; relays behind PgBouncer in transaction mode, which poll", "", 3, 1, takeover{pooled: true}.measure},
			{"pooled-direct", "received; relays behind PgBouncer that listen on a connection past it (Config.Direct)", "", 7, 3, takeover{pooled: true, direct: true}.measure},
			{"pooled-2s", "received; relays behind PgBouncer, which poll, with a LeaseTTL of 2 s", "", 3, 0, takeover{pooled: true, lease: 2 * time.Second}.measure},
		},
	}
}

// takeover kills a relay for each message.
type takeover struct {
	pooled, direct bool
	lease          time.Duration // LeaseTTL; 0: the default
}

func (o takeover) measure(ctx context.Context, s *stage) error {
	store, pool, schema, err := s.store(ctx)
	if err != nil {
		return err
	}
	outbox, q, err := s.outbox(store)
	if err != nil {
		return err
	}
	s.background(ctx, func(ctx context.Context) { _ = outbox.Run(ctx) })
	job := relayJob{
		DatabaseURL: s.databaseURL, AMQPURL: s.amqpURL, Schema: schema, Kind: q.kind, Queues: q.names, Form: headers,
		Connections: 3, Pooled: o.pooled, LeaseTTL: o.lease,
	}
	if o.direct {
		job.DirectURL = s.databaseURL
	}
	if o.pooled {
		if job.DatabaseURL, err = s.pooler(ctx); err != nil {
			return err
		}
	}
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	watch := newStopwatch(s.n)
	if err := q.each(q.names[0], watch.see); err != nil {
		return err
	}
	t := toll{pool: pool, outbox: outbox, watch: watch, job: text}
	s.later(t.end)
	if err := t.start(ctx); err != nil {
		return err
	}
	err = s.timed(ctx, func() (int, error) {
		for i := range s.n {
			if err := t.kill(ctx, i); err != nil {
				return 0, err
			}
		}
		return s.n, nil
	})
	if err != nil {
		return err
	}
	list := watch.latencies()
	s.extra("takeover_s", list[len(list)/2].Seconds())
	s.extra("max_s", list[len(list)-1].Seconds())
	return nil
}

// pooler starts a pooler in front of the database, and returns the database's address through it, for
// connections that prepare no statements.
func (s *stage) pooler(ctx context.Context) (string, error) {
	b, err := service.StartPgBouncer(ctx, s.databaseURL)
	if err != nil {
		return "", err
	}
	s.later(func() { _ = b.Close() })
	u, err := url.Parse(b.URL())
	if err != nil {
		return "", err
	}
	q := u.Query()
	q.Set("default_query_exec_mode", "exec")
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// toll is two relay processes, of which one is killed again and again.
type toll struct {
	pool   *pgxpool.Pool
	outbox *producer.Outbox[pgx.Tx]
	watch  *stopwatch
	job    []byte
	relays []*helper
}

// start starts relays until there are two, and waits until each has half of the shards.
func (t *toll) start(ctx context.Context) error {
	for len(t.relays) < 2 {
		h, err := startHelper(ctx, t.job)
		if err != nil {
			return err
		}
		t.relays = append(t.relays, h)
		if err := h.say("go"); err != nil {
			return err
		}
	}
	for _, h := range t.relays {
		for {
			shards, err := t.shards(ctx, h)
			if err != nil {
				return err
			}
			if len(shards) == idgen.Shards/2 {
				break
			}
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return pause(ctx, time.Second) // they have a witness, and are quiet
}

// shards returns the shards of a relay.
func (t *toll) shards(ctx context.Context, h *helper) ([]int, error) {
	rows, err := t.pool.Query(ctx, `SELECT shard FROM outbox_shards WHERE owner LIKE $1 AND lease_until > clock_timestamp()`,
		fmt.Sprintf("%%/%d/%%", h.cmd.Process.Pid))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

// kill kills the older relay, writes event i into one of its shards, and waits for the event. A new relay
// takes the place of the killed one.
func (t *toll) kill(ctx context.Context, i int) error {
	dead := t.relays[0]
	shards, err := t.shards(ctx, dead)
	if err != nil {
		return err
	}
	if len(shards) == 0 {
		return errors.New("the relay to be killed has no shard")
	}
	key := ""
	for n := 0; key == "" || !slices.Contains(shards, idgen.Shard(key, uuid.UUID{})); n++ {
		key = "key " + strconv.Itoa(n)
	}
	t.watch.committed[i].Store(int64(time.Since(t.watch.base)))
	dead.kill()
	t.relays = t.relays[1:]
	err = t.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.Write(ctx, event("topic-0", key, "order-"+strconv.Itoa(i), 1, body(i)))
		return err
	})
	if err != nil {
		return err
	}
	for begun := time.Now(); t.watch.seen[i].Load() == 0; {
		if time.Since(begun) > time.Minute {
			return errors.New("no relay has taken over within a minute")
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return t.start(ctx)
}

func (t *toll) end() {
	for _, h := range t.relays {
		_ = h.end()
	}
}
