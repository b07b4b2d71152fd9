package main

import (
	"strings"
	"testing"
)

func TestStatusCountsByTopicWithoutARelay(t *testing.T) {
	t.Parallel()
	r := newRig(t, 5)
	r.exec(`UPDATE boxpair.outbox_events SET topic = 'order.shipped', created_at = now() - interval '1 hour' WHERE id > 3`,
		`WITH q AS (DELETE FROM boxpair.outbox_queue WHERE id = 1 RETURNING shard, id)
			INSERT INTO boxpair.outbox_parked (id, shard, key, state) SELECT id, shard, 'k', 'dead' FROM q`)
	status, out, errs := call(t, nil, "status", "--topics", "--outbox", r.url)
	if status != exitOK || !strings.Contains(out, "order.shipped        2  1h         0\n") || !strings.Contains(out, "order.placed         2  ") {
		t.Errorf("%d, %s%s", status, out, errs)
	}
	_, out, _ = call(t, nil, "status", "--topics", "--outbox", r.url, "-o", "json")
	got := outboxOf(t, out).topicsStatus
	if len(got.Topics) != 2 || got.WaitingCapped || got.DeadCapped || got.Topics[0].OldestSeconds < 3600 ||
		got.Topics[1].Topic != "order.placed" || got.Topics[1].Waiting != 2 || got.Topics[1].Dead != 1 {
		t.Errorf("%s", out)
	}
	if _, out, _ := call(t, nil, "status", "--outbox", r.url, "-o", "json"); strings.Contains(out, `"topics":[{`) {
		t.Errorf("topics are counted without being asked for: %s", out)
	}
}

func TestStatusSaysThatMoreWaitThanAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`WITH e AS (
		INSERT INTO boxpair.outbox_events (dispatch_id, shard, digest, topic, payload)
		SELECT gen_random_uuid(), i % 64, '\x00000000000000000000000000000000', 'order.placed', '' FROM generate_series(1, 10000) i RETURNING shard, id
	) INSERT INTO boxpair.outbox_queue (shard, id) SELECT shard, id FROM e`)
	_, out, errs := call(t, nil, "status", "--topics", "--outbox", r.url)
	if !strings.Contains(out, "order.placed  over 9984  ") || !strings.Contains(out, "Counting ends at about 10000 events: ") {
		t.Errorf("%s%s", out, errs)
	}
}
