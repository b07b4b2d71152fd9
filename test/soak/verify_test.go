package soak

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/test/faults/servers"
	"github.com/boxpair/boxpair/test/faults/system"
)

// What a chain leaves behind that has handled ten orders of two keys: the last one of b was given
// up by an operator.
const (
	wellOutbox = `
INSERT INTO orders SELECT 'p', i, CASE WHEN i > 5 THEN 'b' ELSE 'a' END, (i - 1) % 5 + 1, i * 10 FROM generate_series(1, 10) i;
INSERT INTO origins SELECT $topic, 'order/p/' || number, key FROM orders`
	wellInbox = `
INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/apply', '1 day');
INSERT INTO effects (consumer, dispatch, key, n, amount, sent)
    SELECT 'stock', md5(i::text)::uuid, CASE WHEN i > 5 THEN 'b' ELSE 'a' END, (i - 1) % 5 + 1, i * 10, now() FROM generate_series(1, 9) i;
INSERT INTO boxpair.inbox (consumer, dispatch_id, digest, stamp, applied_at)
    SELECT c.id, e.dispatch, '\x00000000000000000000000000000000', now(), now() FROM effects e, boxpair.inbox_consumers c;
INSERT INTO boxpair.inbox_parked (dispatch_id, consumer, ordered, claimed, state, digest, topic, key, metadata, payload)
    SELECT md5('10')::uuid, id, true, false, 'discarded', '\x00000000000000000000000000000000', 't', 'b', '{}',
        convert_to('{"key": "b", "n": 5}', 'UTF8') FROM boxpair.inbox_consumers`
)

func TestOneOfAMillionWouldBeCounted(t *testing.T) {
	t.Parallel()
	s, err := servers.Start(t.Context(), servers.Config{NoRabbitMQ: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	well := findings{messages: 10, effects: 9, aside: 1}
	for name, c := range map[string]struct {
		outbox, inbox string
		want          func(*findings)
	}{
		"all is well": {want: func(*findings) {}},
		"one is lost": {inbox: `DELETE FROM effects WHERE n = 2 AND key = 'a'; DELETE FROM boxpair.inbox WHERE dispatch_id = md5('2')::uuid`,
			want: func(f *findings) { f.effects, f.lost = 8, 1 }},
		"one is repeated": {inbox: `INSERT INTO effects (consumer, dispatch, key, n, amount, sent) SELECT consumer, dispatch, key, n, amount, sent FROM effects WHERE n = 2 AND key = 'a'`,
			want: func(f *findings) { f.effects, f.repeated = 10, 1 }},
		"two are out of order": {inbox: `UPDATE effects SET n = 5 - n, amount = 50 - amount, dispatch = md5((5 - n)::text)::uuid WHERE key = 'a' AND n IN (2, 3)`,
			want: func(f *findings) { f.unordered = 1 }},
		"one that was redriven comes late": {inbox: `UPDATE effects SET n = 5 - n, amount = 50 - amount, dispatch = md5((5 - n)::text)::uuid WHERE key = 'a' AND n IN (2, 3);
INSERT INTO boxpair.inbox_history (dispatch_id, consumer, outcome) SELECT md5('2')::uuid, id, 'redriven' FROM boxpair.inbox_consumers`,
			want: func(f *findings) { f.redriven = 1 }},
		"one has other content": {inbox: `UPDATE effects SET amount = 1 WHERE n = 2 AND key = 'a'`,
			want: func(f *findings) { f.phantom = 1 }},
		"one was given up and applied": {inbox: `INSERT INTO effects (consumer, dispatch, key, n, amount, sent) VALUES ('stock', md5('10')::uuid, 'b', 5, 100, now())`,
			want: func(f *findings) { f.effects, f.aside, f.phantom, f.unclaimed = 10, 0, 1, 1 }},
		"one has no claim": {inbox: `DELETE FROM boxpair.inbox WHERE dispatch_id = md5('2')::uuid`,
			want: func(f *findings) { f.unclaimed = 1 }},
		"one has no event":        {outbox: `DELETE FROM origins WHERE source = 'order/p/10'`, want: func(f *findings) { f.torn = 1 }},
		"an event is of no order": {outbox: `INSERT INTO origins VALUES ($topic, 'order/p/11', 'b')`, want: func(f *findings) { f.torn = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sys, err := system.New(t.Context(), s, system.Config{Dir: t.TempDir(), NoWire: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sys.Close(context.WithoutCancel(t.Context())) })
			if err := keepOrigins(t.Context(), sys); err != nil {
				t.Fatal(err)
			}
			for _, do := range []struct {
				pool *pgxpool.Pool
				sql  string
			}{{sys.OutboxPool(), wellOutbox}, {sys.InboxPool(), wellInbox}, {sys.OutboxPool(), c.outbox}, {sys.InboxPool(), c.inbox}} {
				if _, err := do.pool.Exec(t.Context(), strings.ReplaceAll(do.sql, "$topic", "'"+sys.Topic+"'")); err != nil {
					t.Fatal(err)
				}
			}
			got, err := verify(t.Context(), sys)
			if err != nil {
				t.Fatal(err)
			}
			want := well
			c.want(&want)
			want.p50, want.p99, want.most = got.p50, got.p99, got.most
			if int64(len(got.late)) != got.unordered {
				t.Errorf("%d effects are out of order, and told are %q", got.unordered, got.late)
			}
			got.late = nil
			if !reflect.DeepEqual(*got, want) {
				t.Errorf("found %+v, want %+v", *got, want)
			}
		})
	}
}
