package soak

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
)

// findings are the results of the verification of the tables.
type findings struct {
	messages, effects int64
	lost              int64    // orders without an effect that are not set aside
	aside             int64    // orders without an effect that are set aside
	repeated          int64    // effects beyond the first
	phantom           int64    // effects without an order, of another content, or of what was set aside
	torn              int64    // orders without their event, or events without their order
	unordered         int64    // effects that came after a later one of their key
	late              []string // examples of late effects, each with the effect before it
	redriven          int64    // effects that are late because an operator redrove their messages
	unclaimed         int64    // effects without a claim of their dispatch, or claims without an effect
	p50, p99, most    float64  // seconds from the write of an event to its effect
}

// lateTold is how many late effects are described in detail.
const lateTold = 10

// verify counts. Orders and effects are in two databases, so both are read side by side in one
// order.
func verify(ctx context.Context, sys *system.System) (*findings, error) {
	f := &findings{}
	for _, step := range []func(context.Context, *system.System) error{f.compare, f.origins, f.order, f.claims, f.latency} {
		if err := step(ctx, sys); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// row is an order or its effect.
type row struct {
	key       string
	n, amount int64
}

func (r *row) before(o *row) bool { return r.key < o.key || r.key == o.key && r.n < o.n }

// reader reads rows one by one.
type reader struct {
	rows pgx.Rows
	row
	ok bool
}

func read(ctx context.Context, pool *pgxpool.Pool, table string) (*reader, error) {
	rows, err := pool.Query(ctx, `SELECT key, n, amount FROM `+table+` ORDER BY key COLLATE "C", n`)
	return &reader{rows: rows}, err
}

func (r *reader) next() error {
	if r.ok = r.rows.Next(); !r.ok {
		return r.rows.Err()
	}
	return r.rows.Scan(&r.key, &r.n, &r.amount)
}

func (f *findings) compare(ctx context.Context, sys *system.System) error {
	orders, err := read(ctx, sys.OutboxPool(), "orders")
	if err != nil {
		return err
	}
	defer orders.rows.Close()
	effects, err := read(ctx, sys.InboxPool(), "effects")
	if err != nil {
		return err
	}
	defer effects.rows.Close()
	aside, err := setAside(ctx, sys)
	if err != nil {
		return err
	}
	if err := merge(f, aside, orders.next, effects.next, orders, effects); err != nil {
		return fmt.Errorf("compare orders and effects: %w", err)
	}
	return nil
}

// place identifies an order.
type place struct {
	key string
	n   int64
}

// setAside reads the messages that wait for an operator or were discarded.
func setAside(ctx context.Context, sys *system.System) (map[place]bool, error) {
	aside := make(map[place]bool)
	for _, from := range []struct {
		pool  *pgxpool.Pool
		query string
		arg   string
	}{
		{sys.OutboxPool(), `boxpair.outbox_parked p JOIN boxpair.outbox_events e USING (id) WHERE e.topic = $1`, sys.Topic},
		{sys.InboxPool(), `boxpair.inbox_parked e JOIN boxpair.inbox_consumers c ON c.id = e.consumer WHERE c.name = $1`, child.ConsumerName("stock")},
	} {
		rows, err := from.pool.Query(ctx, `SELECT p->>'key', (p->>'n')::bigint FROM (SELECT convert_from(e.payload, 'UTF8')::json AS p FROM `+from.query+`) all_of_them`, from.arg)
		if err != nil {
			return nil, err
		}
		var p place
		if _, err := pgx.ForEachRow(rows, []any{&p.key, &p.n}, func() error { aside[p] = true; return nil }); err != nil {
			return nil, fmt.Errorf("read what is set aside: %w", err)
		}
	}
	return aside, nil
}

// merge reads orders and effects side by side.
func merge(f *findings, aside map[place]bool, nextOrder, nextEffect func() error, orders, effects *reader) error {
	if err := nextOrder(); err != nil {
		return err
	}
	if err := nextEffect(); err != nil {
		return err
	}
	for orders.ok || effects.ok {
		var err error
		switch {
		case !effects.ok || orders.ok && orders.before(&effects.row):
			f.messages++
			if aside[place{orders.key, orders.n}] {
				f.aside++
			} else {
				f.lost++
			}
			err = nextOrder()
		case !orders.ok || effects.before(&orders.row):
			f.effects++
			f.phantom++
			err = nextEffect()
		default:
			f.messages++
			order := orders.row
			for n := 0; err == nil && effects.ok && !order.before(&effects.row); n++ {
				f.effects++
				if n > 0 {
					f.repeated++
				}
				if effects.amount != order.amount || aside[place{order.key, order.n}] {
					f.phantom++
				}
				err = nextEffect()
			}
			if err == nil {
				err = nextOrder()
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keepOrigins records the source of every event in the event's transaction, since a janitor removes
// events. The roles that write events have no privilege on this table.
func keepOrigins(ctx context.Context, sys *system.System) error {
	_, err := sys.OutboxPool().Exec(ctx, `
CREATE TABLE origins (topic text, source text, key text);
CREATE FUNCTION keep_origins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO public.origins SELECT topic, source, key FROM written; RETURN NULL;
END $$;
CREATE TRIGGER keep_origins AFTER INSERT ON boxpair.outbox_events REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION keep_origins()`)
	return err
}

// origins counts changes without an event, and events without a change.
func (f *findings) origins(ctx context.Context, sys *system.System) error {
	return one(ctx, sys.OutboxPool(), &f.torn, `
SELECT count(*) FROM orders o FULL JOIN (SELECT DISTINCT source, key FROM origins WHERE topic = '`+sys.Topic+`') e
    ON e.source = 'order/' || o.producer || '/' || o.number AND e.key = o.key
WHERE o.number IS NULL OR e.source IS NULL`)
}

// order checks the order in which effects were written. Second effects and missing effects are
// counted elsewhere. A dead message does not hold back its key, so a redriven message comes after
// later messages.
func (f *findings) order(ctx context.Context, sys *system.System) error {
	rows, err := sys.InboxPool().Query(ctx, `
SELECT EXISTS (SELECT FROM boxpair.inbox_history h WHERE h.dispatch_id = e.dispatch AND h.outcome = 'redriven'),
    format('%s: %s at %s (%s) came after %s at %s (%s)', l.key, l.n, e.at, e.dispatch, l.before, b.at, b.dispatch)
FROM (
    SELECT key, n, seq, lag(n) OVER (PARTITION BY key ORDER BY seq) AS before, lag(seq) OVER (PARTITION BY key ORDER BY seq) AS after
    FROM (SELECT key, n, min(seq) AS seq FROM effects GROUP BY key, n) first
) l JOIN effects e USING (seq) JOIN effects b ON b.seq = l.after
WHERE l.n < l.before`)
	if err != nil {
		return fmt.Errorf("read what came late: %w", err)
	}
	var (
		redriven bool
		late     string
	)
	_, err = pgx.ForEachRow(rows, []any{&redriven, &late}, func() error {
		if redriven {
			f.redriven++
			return nil
		}
		if f.unordered++; f.unordered <= lateTold {
			f.late = append(f.late, late)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what came late: %w", err)
	}
	return nil
}

func (f *findings) claims(ctx context.Context, sys *system.System) error {
	return one(ctx, sys.InboxPool(), &f.unclaimed, `
SELECT count(*) FROM (SELECT DISTINCT dispatch FROM effects) e
FULL JOIN (SELECT dispatch_id FROM boxpair.inbox WHERE applied_at IS NOT NULL) i ON i.dispatch_id = e.dispatch
WHERE e.dispatch IS NULL OR i.dispatch_id IS NULL`)
}

func (f *findings) latency(ctx context.Context, sys *system.System) error {
	return sys.InboxPool().QueryRow(ctx, `
SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY d), 0), coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY d), 0),
    coalesce(max(d), 0)
FROM (SELECT extract(epoch FROM at - sent)::float8 AS d FROM effects) e`).Scan(&f.p50, &f.p99, &f.most)
}

func one(ctx context.Context, pool *pgxpool.Pool, into *int64, query string, args ...any) error {
	if err := pool.QueryRow(ctx, query, args...).Scan(into); err != nil {
		return fmt.Errorf("count: %w", err)
	}
	return nil
}
