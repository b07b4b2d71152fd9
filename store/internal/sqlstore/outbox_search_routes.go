package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// stalled is what visible relays report of routes, and what waits for those.
type stalled struct {
	*facts
	says  map[routeOf]string
	ahead map[int][]first // the first events of a shard's queue
}

type routeOf struct{ relay, topic string }

// first is an event at the beginning of a queue.
type first struct {
	seq        int64
	key, topic string
}

// readStalled reads what relays report.
func (f *facts) readStalled(ctx context.Context) (*stalled, error) {
	s := &stalled{facts: f, says: make(map[routeOf]string), ahead: make(map[int][]first)}
	err := f.c.Each(ctx, f.tx, func(rows *sql.Rows) error {
		var of routeOf
		var route, state, lastError string
		var since int64
		err := rows.Scan(&of.relay, &of.topic, &route, &state, &since, &lastError)
		s.says[of] = "route " + route + " is " + state + " since " + Instant(since).Format(time.DateTime) + " UTC: " + lastError
		return err
	}, `SELECT n.relay, n.topic, n.route, n.state, n.since, n.last_error
		FROM {outbox_routes} n JOIN {outbox_relays} l ON l.id = n.relay AND l.seen_until > {now}`)
	return s, err
}

// of returns what is known of the route that an event waits for: its own, or that of an earlier event
// of its key, which becomes its WaitsFor.
func (s *stalled) of(ctx context.Context, e *outbox.Found, owner string) (string, error) {
	if len(s.says) == 0 || e.State != outbox.PendingState && e.State != outbox.Retrying && e.State != outbox.Following {
		return "", nil
	}
	own := s.says[routeOf{owner, e.Topic}]
	if e.WaitsFor != 0 {
		var topic string
		err := s.c.Each(ctx, s.tx, func(rows *sql.Rows) error { return rows.Scan(&topic) },
			`SELECT topic FROM {outbox_events} WHERE id = ?`, e.WaitsFor)
		return s.says[routeOf{owner, topic}], err
	}
	if own != "" || e.Key == "" || e.State != outbox.PendingState {
		return own, nil
	}
	list, err := s.firstOf(ctx, e.Shard)
	for _, f := range list {
		if says := s.says[routeOf{owner, f.topic}]; says != "" && f.key == e.Key && f.seq < e.Seq {
			e.WaitsFor = f.seq
			return says, nil
		}
	}
	return "", err
}

// firstOf returns the first events of a shard's queue.
func (s *stalled) firstOf(ctx context.Context, shard int) ([]first, error) {
	if list, known := s.ahead[shard]; known {
		return list, nil
	}
	list, err := collect(ctx, s.c, s.tx, func(rows *sql.Rows) (f first, err error) {
		err = rows.Scan(&f.seq, &f.key, &f.topic)
		return f, err
	}, `SELECT e.id, e.{event_key}, e.topic FROM (SELECT id FROM {outbox_queue} WHERE shard = ? ORDER BY id LIMIT ?) q
		JOIN {outbox_events} e ON e.id = q.id ORDER BY e.id`, shard, aheadOf)
	s.ahead[shard] = list
	return list, err
}
