package postgres

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// TestBacklogOfStoredMessagesIsReadByItsKeys stores messages of a key beside a backlog of many
// messages of many keys: the due messages are found without a look at the followers, and a message
// is stored without a look at the messages of its key.
func TestBacklogOfStoredMessagesIsReadByItsKeys(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	ctx := t.Context()
	r, err := p.Register(ctx, "service/handler", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	const many, keys = 50_000, 100
	p.run(`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, state, metadata, payload, next_attempt_at)
		SELECT $1, gen_random_uuid(), '\x00000000000000000000000000000000', 'topic', 'key ' || i % $3::int, true, true,
			CASE WHEN i < 2 * $3::int THEN 'retrying' ELSE 'following' END, '{}', 'payload', CASE WHEN i < 2 * $3::int THEN clock_timestamp() END
		FROM generate_series(0, $2::int - 1) i`, r.Consumer, many, keys)
	due := p.explain(dueMessages, r.Consumer, 256)
	p.expectIndexes("due", due, 3000)
	store := func(key string) string {
		m := &inbox.Message{ID: uuid.New(), Topic: "topic", Key: key, Stamp: time.Now()}
		_, err := p.ParkMessage(ctx, inbox.Parking{Consumer: r.Consumer, Message: m, State: inbox.Retrying, Ordered: true, Fresh: true})
		if err != nil {
			t.Fatal(err)
		}
		list, err := p.ListParkedMessages(ctx, inbox.Filter{IDs: []uuid.UUID{m.ID}})
		if err != nil || len(list) != 1 {
			t.Fatal(err, list)
		}
		return string(list[0].State)
	}
	// The first message of a key is left alone, so a second one is due as well.
	for n, want := range []inbox.State{inbox.Retrying, inbox.Retrying, inbox.Following, inbox.Following} {
		if got := store("new"); got != string(want) {
			t.Errorf("message %d of a key is %s, want %s", n, got, want)
		}
	}
	if got := store("key 7"); got != string(inbox.Following) {
		t.Errorf("message behind many of its key is %s", got)
	}
	p.expectStored(r.Consumer)
}

// TestRedrivenMessagesCostLittleBehindAnAnalyze redrives dead messages of a few keys whose statistics
// know dead messages only.
func TestRedrivenMessagesCostLittleBehindAnAnalyze(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	r, err := p.Register(t.Context(), "service/handler", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	const many, keys = 20_000, 100
	p.run(`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, state, metadata, payload)
		SELECT $1, gen_random_uuid(), '\x00000000000000000000000000000000', 'topic', 'key ' || i % $3::int, true, true, 'dead', '{}', 'payload'
		FROM generate_series(0, $2::int - 1) i`, r.Consumer, many, keys)
	p.run("VACUUM ANALYZE")
	p.run(`UPDATE boxpair.inbox_parked SET state = CASE WHEN id <= 100 THEN 'retrying' ELSE 'following' END,
		next_attempt_at = CASE WHEN id <= 100 THEN clock_timestamp() END`)
	p.expectIndexes("due", p.explain(dueMessages, r.Consumer, 256), 3000)
	p.expectIndexes("promote", p.explain(promoteMessage, r.Consumer, "key 7", 0), 60)
	p.expectIndexes("promote a follower", p.explain(promoteFollowing, r.Consumer, "key 7"), 60)
	p.expectStored(r.Consumer)
}

// expectStored checks the cost of a message that is stored behind others of its key.
func (p *planned) expectStored(consumer int) {
	p.Helper()
	m := &inbox.Message{ID: uuid.New(), Topic: "topic", Key: "key 7", Stamp: time.Now()}
	args, err := parkingArgs(&inbox.Parking{Consumer: consumer, Message: m, State: inbox.Retrying, Ordered: true}, true)
	if err != nil {
		p.Fatal(err)
	}
	args[12] = true
	p.expectIndexes("store", p.explain(insertFresh, args...), 60)
}
