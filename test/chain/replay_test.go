package chain

import (
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport/memory"
)

// A replay reaches a consumer that has applied all events, and a new consumer.
func TestReplayRunsNothingAgainAndTeachesNewConsumers(t *testing.T) {
	t.Parallel()
	t.Run("on PostgreSQL and RabbitMQ", func(t *testing.T) {
		t.Parallel()
		db, _ := newPostgres(t)
		topic := newTopic(t, "stock")
		runReplay(t, db, topic, newPublisher(t), func(name string) message.Subscriber {
			declare(t, topic, name)
			return newSubscriber(t, name)
		})
	})
	t.Run("on SQLite within one process", func(t *testing.T) {
		t.Parallel()
		db := newSQLite(t)
		broker, err := memory.New(memory.Config{})
		ok(t, err)
		t.Cleanup(func() { _ = broker.Close() })
		runReplay(t, db, "placed", broker, func(name string) message.Subscriber { return broker.Subscriber(name) })
	})
}

func runReplay[TX any](t *testing.T, db *database[TX], topic string, publisher message.Publisher, subscriber func(name string) message.Subscriber) {
	t.Helper()
	const each = 8
	out := outboxOf(t, db)
	stock := apply(t, db, subscriber("stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	startRelay(t, out, publisher, relay.Config{LeaseTTL: time.Minute})
	placeAll(t, db, out, topic, each, "a", "b")
	db.wantEffects(t, "stock", 2*each)
	db.wantDrained(t)

	apply(t, db, subscriber("mail"), topic, "mail", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	report, err := out.Replay(t.Context(), producer.Replay{Selection: outbox.Selection{Topic: topic}, InQueue: 5})
	ok(t, err)
	if report.Replayed != 2*each {
		t.Errorf("replay did %+v", report)
	}
	db.wantEffects(t, "mail", 2*each)
	db.wantDrained(t)
	eventually(t, "copies at the old consumer", func() bool { return stock.handler.Counters().Duplicates() >= 2*each })
	if c := stock.handler.Counters(); c.Applied != 2*each || c.Duplicates() != 2*each {
		t.Errorf("counters of the old consumer: %+v", c)
	}
	var ids []string
	for _, key := range []string{"a", "b"} {
		for n := range each {
			ids = append(ids, idgen.Of("shop", "aggregate/"+key, int64(n+1), 0).String())
		}
	}
	slices.Sort(ids)
	for _, name := range []string{"stock", "mail"} {
		db.wantOrder(t, name, "a", each)
		db.wantOrder(t, name, "b", each)
		got := db.list(`SELECT dispatch FROM effects WHERE consumer = $1`, name)
		if slices.Sort(got); !slices.Equal(got, ids) {
			t.Errorf("%s applied dispatches %v, want %v", name, got, ids)
		}
	}
}

// replayAndRemove replays the n events of topic in db as an operator and, after their delivery,
// removes all events as a janitor. db itself is only read.
func replayAndRemove[TX any](t *testing.T, db *database[TX], operator *producer.Outbox[TX], janitors outbox.JanitorStore, topic string, n int) {
	t.Helper()
	report, err := operator.Replay(t.Context(), producer.Replay{Selection: outbox.Selection{Topic: topic}})
	ok(t, err)
	if report.Replayed != int64(n) || !report.Done {
		t.Errorf("replay of %d events did %+v", n, report)
	}
	db.wantDrained(t)
	if found := db.number(`SELECT count(*) FROM ` + db.schema + `outbox_events`); found < n {
		t.Errorf("%d events are left for the janitor", found)
	}
	janitor, err := producer.NewJanitor(janitors, producer.JanitorConfig{Retention: time.Second, Interval: 50 * time.Millisecond})
	ok(t, err)
	start(t, janitor.Run)
	db.wantRemoved(t)
}

// wantRemoved waits until a janitor has removed every event.
func (d *database[TX]) wantRemoved(t *testing.T) {
	t.Helper()
	eventually(t, "an outbox without events", func() bool {
		return d.number(`SELECT count(*) FROM `+d.schema+`outbox_events`) == 0
	})
}
