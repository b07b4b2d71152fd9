package chain

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport"
)

// A database with pending and parked events and parked messages moves to another server with other
// transaction IDs.
func TestRestoredDatabaseLosesAndReordersNothing(t *testing.T) {
	t.Parallel()
	source, sourceURL := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	fill(t, source, topic)

	server := testenv.PrivatePostgres(t)
	dump := tool(t, "pg_dump", nil, sourceURL)
	tool(t, "psql", dump, "-v", "ON_ERROR_STOP=1", "-q", server.URL())
	target := openPostgres(t, server.URL())

	outbox := outboxOf(t, target)
	apply(t, target, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	startRelay(t, outbox, newPublisher(t), relay.Config{LeaseTTL: time.Second})
	placeAll(t, target, outbox, topic, 3, "good", "bad", "slow")
	for key, n := range map[string]int{"good": 9, "bad": 9, "slow": 9} {
		target.wantEffectsOf(t, key, n)
		wantAscending(t, "on the wire, key "+key, seen.first(key), n)
		target.wantOrder(t, "stock", key, n)
	}
	target.wantEffects(t, "stock", 27)
	target.wantDrained(t)
}

// fill places six events of three keys. Half of each key's events are sent: the events of "bad" are
// refused and parked, and the events of "slow" arrive and are parked by the consumer. The other
// half is written after the relay has ended.
func fill(t *testing.T, db *database[pgx.Tx], topic string) {
	t.Helper()
	outbox, publisher := outboxOf(t, db), newPublisher(t)
	refuses := &sender{Sender: publisher, send: func(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
		if msg.Metadata[transport.MetaKey] == "bad" {
			done(transport.Result{Outcome: transport.Refused, Err: errors.New("refused by the test")})
			return
		}
		publisher.Send(ctx, topic, msg, done)
	}}
	s := startService(t, db, nil, newSubscriber(t, "stock"), topic, consumer.Config{Service: "stock"},
		consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Retry: consumer.RetryConfig{QuickAttempts: 1}},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			if w.Event().Key == "slow" {
				return consumer.RetryAfter(2*time.Second, errors.New("not yet"))
			}
			return db.effect(ctx, w, "stock")
		})
	_, stop := startRelay(t, outbox, refuses, relay.Config{Backoff: relay.Backoff{Initial: time.Second}})
	placeAll(t, db, outbox, topic, 3, "good", "bad", "slow")
	eventually(t, "parked events and messages", func() bool {
		return db.number(`SELECT count(*) FROM boxpair.outbox_parked WHERE state IN ('retrying', 'following')`) == 3 &&
			db.number(`SELECT count(*) FROM boxpair.outbox_queue`) == 0 &&
			db.number(`SELECT count(*) FROM boxpair.inbox_parked WHERE state IN ('retrying', 'following')`) == 3 &&
			db.number(`SELECT count(*) FROM effects`) == 3
	})
	stop()
	s.stop()
	placeAll(t, db, outbox, topic, 3, "good", "bad", "slow")
}

// wantEffectsOf waits for the effects of n dispatches of key.
func (d *database[TX]) wantEffectsOf(t *testing.T, key string, n int) {
	t.Helper()
	eventually(t, "effects of key "+key, func() bool {
		return d.number(`SELECT count(DISTINCT dispatch) FROM effects WHERE key = $1`, key) >= n
	})
}

// tool runs one of PostgreSQL's client programs.
func tool(t *testing.T, name string, input []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.PGTool(t, name), args...)
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, complaints.String())
	}
	return out.Bytes()
}
