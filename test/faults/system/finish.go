package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/invariant"
	"github.com/boxpair/boxpair/test/faults/servers"
)

// stopLimit bounds the orderly end of the children.
const stopLimit = 20 * time.Second

// Finish waits until the producers are done and everything has come to rest, stops the children,
// and reads the state. needed is the least work that the run must show. An error means that the
// reading failed, or that a child ended badly; package invariant judges the state.
func (s *System) Finish(ctx context.Context, needed invariant.Work) (*invariant.State, error) {
	if err := s.produced(ctx); err != nil {
		return nil, err
	}
	rested := s.rest(ctx)
	took := time.Since(s.calmSince)
	if err := s.stop(ctx); err != nil {
		return nil, err
	}
	state, err := s.Look(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at what was done: %w", err)
	}
	state.Drained, state.DrainedIn, state.DrainLimit = rested, took, s.cfg.DrainLimit
	state.Needed = needed
	return state, nil
}

// Settle waits until the producers are done and all events are sent and handled, within
// Config.DrainLimit. The children keep running.
func (s *System) Settle(ctx context.Context) error {
	if err := s.produced(ctx); err != nil {
		return err
	}
	s.Injected(0)
	if !s.rest(ctx) {
		return errors.New("something is left to be done")
	}
	return nil
}

// produced waits until the running producers have placed all their orders.
func (s *System) produced(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DrainLimit)
	defer cancel()
	for _, p := range s.running() {
		if c := p.Config(); c.Orders == 0 || !has(c.Roles, child.Producer) {
			continue
		}
		if err := p.Until(ctx, "all orders were placed", func(r *child.Report) bool { return r.ProducerDone }); err != nil {
			return err
		}
	}
	return nil
}

func has(roles []child.Role, role child.Role) bool {
	for _, r := range roles {
		if r == role {
			return true
		}
	}
	return false
}

func (s *System) running() []*child.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	var running []*child.Process
	for _, p := range s.children {
		select {
		case <-p.Ended():
		default:
			running = append(running, p)
		}
	}
	return running
}

// rest waits until no work is left, and tells whether that happened within Config.DrainLimit.
func (s *System) rest(ctx context.Context) bool {
	ctx, cancel := context.WithDeadline(ctx, s.calmSince.Add(s.cfg.DrainLimit))
	defer cancel()
	for quiet := 0; quiet < 2; { // twice: a message may move between the counts
		left, err := s.Left(ctx)
		if err == nil && left == 0 {
			quiet++
		} else {
			quiet = 0
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	return true
}

// Left returns the amount of unfinished work: events to send, messages at the broker, and messages
// to handle.
func (s *System) Left(ctx context.Context) (int, error) {
	left, err := Number(ctx, s.pools.outbox, `SELECT (SELECT count(*) FROM boxpair.outbox_queue)
		+ (SELECT count(*) FROM boxpair.outbox_parked WHERE state IN ('retrying', 'following'))`)
	if err != nil || left > 0 {
		return left, err
	}
	left, err = Number(ctx, s.pools.inbox, `SELECT count(*) FROM boxpair.inbox_parked WHERE state IN ('retrying', 'following')`)
	if err != nil || left > 0 {
		return left, err
	}
	sent, err := Number(ctx, s.pools.outbox, `SELECT (SELECT count(*) FROM orders) - (SELECT count(*) FROM boxpair.outbox_parked)`)
	if err != nil {
		return 0, err
	}
	handled := `SELECT count(*) FROM boxpair.inbox i JOIN boxpair.inbox_consumers c ON c.id = i.consumer
		WHERE c.name || $1 = $2 || $1`
	if s.cfg.Forgets {
		handled = `SELECT count(DISTINCT dispatch) FROM effects WHERE consumer = $1 AND $2 <> ''`
	}
	for _, name := range s.cfg.Services {
		n, err := Number(ctx, s.pools.inbox, handled, name, child.ConsumerName(name))
		if err != nil {
			return 0, err
		}
		left += max(0, sent-n)
	}
	if left > 0 {
		return left, nil
	}
	return s.queued()
}

// queued returns how many messages wait at the broker. Delivered and unacknowledged messages are
// not counted until their channel is closed.
func (s *System) queued() (total int, err error) {
	err = s.channel(func(ch *amqp091.Channel) error {
		for _, service := range s.cfg.Services {
			q, err := ch.QueueDeclarePassive(child.QueueName(s.Topic, service), true, false, false, false, nil)
			if err != nil {
				return err
			}
			total += q.Messages
		}
		return nil
	})
	return total, err
}

// stop stops the running children in order, and keeps their reports.
func (s *System) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	running := s.running()
	var errs []error
	for _, p := range running {
		errs = append(errs, p.Terminate(ctx)) // all at once
	}
	for _, p := range running {
		report, err := p.Stop(ctx)
		errs = append(errs, err)
		if err == nil {
			s.Reported(p, report)
		}
	}
	return errors.Join(errs...)
}

// Reported keeps the report of a stopped child.
func (s *System) Reported(p *child.Process, r *child.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports[fmt.Sprintf("%s (%d)", p.Name(), len(s.reports))] = r
}

// Look reads the state. No child may be running, since Look takes the messages at the broker.
func (s *System) Look(ctx context.Context) (*invariant.State, error) {
	state := &invariant.State{
		Unordered: s.cfg.Unordered, Forgets: s.cfg.Forgets,
		Secrets: []string{child.Canary, servers.Password},
	}
	for _, read := range []func(context.Context, *invariant.State) error{
		s.readOrders, s.readOutbox, s.readConsumers, s.readBroker, s.readTexts,
	} {
		if err := read(ctx, state); err != nil {
			return nil, err
		}
	}
	s.readChildren(state)
	return state, nil
}

// LookAtDatabases reads the state of the databases; children may be running.
func (s *System) LookAtDatabases(ctx context.Context) (*invariant.State, error) {
	state := &invariant.State{}
	for _, read := range []func(context.Context, *invariant.State) error{s.readOrders, s.readOutbox, s.readConsumers} {
		if err := read(ctx, state); err != nil {
			return nil, err
		}
	}
	return state, nil
}

func (s *System) readOrders(ctx context.Context, state *invariant.State) error {
	rows, err := s.pools.outbox.Query(ctx, `SELECT producer, number, key, n, amount FROM orders`)
	if err != nil {
		return err
	}
	state.Orders, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (invariant.Order, error) {
		var o child.Order
		err := row.Scan(&o.Producer, &o.Number, &o.Key, &o.N, &o.Amount)
		return invariant.Order{Dispatch: o.Dispatch(), Key: o.Key, N: o.N, Amount: o.Amount}, err
	})
	state.Did.Orders = len(state.Orders)
	return err
}

func (s *System) readOutbox(ctx context.Context, state *invariant.State) error {
	rows, err := s.pools.outbox.Query(ctx, `SELECT dispatch_id, key, (p->>'n')::bigint, (p->>'amount')::bigint
		FROM (SELECT *, convert_from(payload, 'UTF8')::json AS p FROM `+s.log()+`) e ORDER BY id`)
	if err != nil {
		return err
	}
	state.Events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (invariant.Event, error) {
		var e invariant.Event
		err := row.Scan((*[16]byte)(&e.Dispatch), &e.Key, &e.N, &e.Amount)
		return e, err
	})
	if err != nil {
		return err
	}
	const parked = `SELECT e.dispatch_id FROM boxpair.outbox_parked p JOIN boxpair.outbox_events e USING (id) WHERE p.state `
	for _, part := range []struct {
		into  *[]uuid.UUID
		query string
	}{
		{&state.Pending, `SELECT coalesce(e.dispatch_id, gen_random_uuid()) FROM boxpair.outbox_queue q LEFT JOIN boxpair.outbox_events e USING (id)`},
		{&state.Live, parked + `IN ('retrying', 'following')`},
		{&state.Dead, parked + `= 'dead'`},
	} {
		if *part.into, err = ids(ctx, s.pools.outbox, part.query); err != nil {
			return err
		}
	}
	return nil
}

func ids(ctx context.Context, pool *pgxpool.Pool, query string, args ...any) ([]uuid.UUID, error) {
	found, err := list[[16]byte](ctx, pool, query, args...)
	all := make([]uuid.UUID, len(found))
	for i, id := range found {
		all[i] = id
	}
	return all, err
}

func (s *System) readConsumers(ctx context.Context, state *invariant.State) error {
	for _, name := range s.cfg.Services {
		c, err := s.readConsumer(ctx, name)
		if err != nil {
			return err
		}
		state.Consumers = append(state.Consumers, c)
	}
	return nil
}

func (s *System) readConsumer(ctx context.Context, name string) (c invariant.Consumer, err error) {
	c.Name, c.Totals = name, make(map[string]invariant.Total)
	c.Receipt = func(id uuid.UUID) uuid.UUID { return child.Receipt(name, id) }
	rows, err := s.pools.inbox.Query(ctx, `SELECT dispatch, key, n, amount FROM effects WHERE consumer = $1 ORDER BY seq`, name)
	if err != nil {
		return c, err
	}
	c.Effects, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (invariant.Effect, error) {
		var e invariant.Effect
		err := row.Scan((*[16]byte)(&e.Dispatch), &e.Key, &e.N, &e.Amount)
		return e, err
	})
	if err != nil {
		return c, err
	}
	rows, err = s.pools.inbox.Query(ctx, `SELECT key, count, sum, least, most FROM totals WHERE consumer = $1`, name)
	if err != nil {
		return c, err
	}
	var (
		key string
		t   invariant.Total
	)
	if _, err = pgx.ForEachRow(rows, []any{&key, &t.Count, &t.Sum, &t.Least, &t.Most}, func() error {
		c.Totals[key] = t
		return nil
	}); err != nil {
		return c, err
	}
	const mine = ` WHERE consumer = (SELECT id FROM boxpair.inbox_consumers WHERE name = $1) `
	for _, part := range []struct {
		into  *[]uuid.UUID
		query string
		arg   string
	}{
		{&c.Claims, `SELECT dispatch_id FROM boxpair.inbox` + mine, child.ConsumerName(name)},
		{&c.Live, `SELECT dispatch_id FROM boxpair.inbox_parked` + mine + `AND state IN ('retrying', 'following')`, child.ConsumerName(name)},
		{&c.Aside, `SELECT dispatch_id FROM boxpair.inbox_parked` + mine + `AND state NOT IN ('retrying', 'following')`, child.ConsumerName(name)},
		{&c.Receipts, `SELECT dispatch_id FROM boxpair.outbox_events WHERE producer = $1`, name},
	} {
		if *part.into, err = ids(ctx, s.pools.inbox, part.query, part.arg); err != nil {
			return c, err
		}
	}
	return c, nil
}

// readChildren reads the reports of the children, and counts the announced faults.
func (s *System) readChildren(state *invariant.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state.Did.Faults = s.faults
	for _, p := range s.children {
		state.Did.Faults += len(p.Faults())
	}
	for name, r := range s.reports {
		state.Processes = append(state.Processes, invariant.Process{
			Name: name, Leaked: r.Leaked, PeakHeap: r.PeakHeap, MostHeap: s.cfg.MostHeap,
			PeakInFlight: r.PeakInFlight, Window: r.Window,
			PeakInMemory: r.PeakInMemory, MostInMemory: 16*r.Window + 1000,
		})
		for _, h := range r.Handlers {
			state.Did.Copies += int(h.Duplicates())
		}
	}
	seen := make(map[uuid.UUID]struct{}, len(state.Wire))
	for _, a := range state.Wire {
		if _, again := seen[a.Dispatch]; again {
			state.Did.Copies++
		}
		seen[a.Dispatch] = struct{}{}
	}
}

// readTexts collects the logs and the stored errors.
func (s *System) readTexts(ctx context.Context, state *invariant.State) error {
	state.Texts = make(map[string]string)
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(s.cfg.Dir, e.Name()))
		if err != nil {
			return err
		}
		state.Texts[e.Name()] = string(text)
	}
	for _, pool := range []*pgxpool.Pool{s.pools.outbox, s.pools.inbox} {
		stored, err := list[string](ctx, pool, `SELECT error FROM boxpair.outbox_attempts
			UNION ALL SELECT coalesce(last_error, '') || coalesce(reason, '') FROM boxpair.outbox_parked
			UNION ALL SELECT coalesce(last_error, '') || coalesce(reason, '') FROM boxpair.inbox_parked
			UNION ALL SELECT coalesce(last_error, '') FROM boxpair.inbox_attempts`)
		if err != nil {
			return err
		}
		state.Texts["stored errors"] += strings.Join(stored, "\n")
	}
	return nil
}
