package chain

import (
	"bytes"
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
	"github.com/boxpair/boxpair/transport/signature"
)

func signingKey(id string) signature.Key {
	return signature.Key{ID: id, Secret: bytes.Repeat([]byte(id), signature.MinSecret)}
}

func signer(t *testing.T, id string) *signature.Signer {
	t.Helper()
	s, err := signature.NewSigner(signingKey(id))
	ok(t, err)
	return s
}

func verifier(t *testing.T, ids ...string) *signature.Verifier {
	t.Helper()
	keys := make([]signature.Key, len(ids))
	for i, id := range ids {
		keys[i] = signingKey(id)
	}
	v, err := signature.NewVerifier(keys...)
	ok(t, err)
	return v
}

// Keys are replaced while events flow: first in verifiers, then in the relay. In between an
// attacker with the right to publish sends the coming events first, without a signature.
func TestSignedEventsAreAppliedAndForgedOnesSetAside(t *testing.T) {
	t.Parallel()
	const each = 5
	for name, on := range map[string]func(t *testing.T) (topic string, pub transport.Sender, sub message.Subscriber){
		"RabbitMQ": func(t *testing.T) (string, transport.Sender, message.Subscriber) {
			return newTopic(t, "stock"), newPublisher(t), newSubscriber(t, "stock")
		},
		"in process": func(t *testing.T) (string, transport.Sender, message.Subscriber) {
			broker, err := memory.New(memory.Config{})
			ok(t, err)
			t.Cleanup(func() { _ = broker.Close() })
			return "placed", broker, broker.Subscriber("stock")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := newPostgres(t)
			topic, pub, sub := on(t)
			s := startService(t, db, nil, sub, topic, consumer.Config{Service: "stock", Verifier: verifier(t, "old", "new")},
				consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}}, func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
					return db.effect(ctx, w, "stock")
				})
			outbox := outboxOf(t, db)
			for i, key := range []string{"old", "new"} {
				placeAll(t, db, outbox, topic, each, "a", "b")
				for _, m := range pending(t, db) {
					m.Topic = topic
					m.Payload = []byte("forged")
					ok(t, pub.Publish(topic, m.Message()))
					m.Digest = transport.ContentDigest(&m)
					ok(t, pub.Publish(topic, m.Message()))
				}
				_, stop := startRelay(t, outbox, pub, relay.Config{Signer: signer(t, key)})
				db.wantEffects(t, "stock", 2*each*(i+1))
				db.wantDrained(t)
				stop()
			}
			db.wantOrder(t, "stock", "a", 2*each)
			db.wantOrder(t, "stock", "b", 2*each)
			eventually(t, "forged messages set aside", func() bool { return s.handler.Counters().Refused >= 8*each })
			if n := db.number(`SELECT count(*) FROM boxpair.inbox_parked WHERE state = 'dead'`); n != 8*each {
				t.Errorf("%d messages are set aside", n)
			}
		})
	}
}

// pending returns the IDs and keys of the events that are to be sent.
func pending(t *testing.T, db *database[pgx.Tx]) []transport.Event {
	t.Helper()
	ids := db.list(`SELECT e.dispatch_id::text FROM boxpair.outbox_events e JOIN boxpair.outbox_queue q ON q.id = e.id ORDER BY e.id`)
	keys := db.list(`SELECT e.key FROM boxpair.outbox_events e JOIN boxpair.outbox_queue q ON q.id = e.id ORDER BY e.id`)
	events := make([]transport.Event, len(ids))
	for i := range ids {
		ok(t, events[i].ID.UnmarshalText([]byte(ids[i])))
		events[i].Key = keys[i]
	}
	return events
}

func TestEventsOfARelayWithAnotherKeyAreSetAside(t *testing.T) {
	t.Parallel()
	db, _ := newPostgres(t)
	broker, err := memory.New(memory.Config{})
	ok(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	startService(t, db, nil, broker.Subscriber("stock"), "placed", consumer.Config{Service: "stock", Verifier: verifier(t, "new")},
		consumer.HandlerConfig{}, func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			return db.effect(ctx, w, "stock")
		})
	outbox := outboxOf(t, db)
	startRelay(t, outbox, broker, relay.Config{Signer: signer(t, "old")})
	placeAll(t, db, outbox, "placed", 3, "a")
	db.wantDrained(t)
	if n := db.number(`SELECT count(*) FROM boxpair.inbox_parked WHERE state = 'dead'`); n != 3 {
		t.Errorf("%d messages are set aside", n)
	}
	db.wantEffects(t, "stock", 0)
}
