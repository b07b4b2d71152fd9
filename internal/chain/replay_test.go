package chain

import (
	"database/sql"
	"testing"
	"time"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport/memory"
)

// A replay reaches a consumer that has applied everything and one that was not there
// before.
func TestReplayRunsNothingAgainAndTeachesNewConsumers(t *testing.T) {
	t.Parallel()
	const each = 8
	db := newSQLite(t)
	outbox := outboxOf(t, db)
	broker, err := memory.New(memory.Config{})
	ok(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	stock := apply[*sql.Tx](t, db, broker.Subscriber("stock"), "placed", "stock", consumer.HandlerConfig{Ordered: true})
	startRelay(t, outbox, broker, producer.RelayConfig{LeaseTTL: time.Second})
	placeAll(t, db, outbox, "placed", each, "a", "b")
	db.wantEffects(t, "stock", 2*each)
	db.wantDrained(t)

	apply[*sql.Tx](t, db, broker.Subscriber("mail"), "placed", "mail", consumer.HandlerConfig{Ordered: true})
	report, err := outbox.Replay(t.Context(), producer.Replay{Selection: producer.Selection{Topic: "placed"}, InQueue: 5})
	ok(t, err)
	if report.Replayed != 2*each {
		t.Errorf("replay did %+v", report)
	}
	db.wantEffects(t, "mail", 2*each)
	db.wantDrained(t)
	for _, key := range []string{"a", "b"} {
		db.wantOrder(t, "stock", key, each)
		db.wantOrder(t, "mail", key, each)
	}
	if c := stock.handler.Counters(); c.Applied != 2*each || c.Duplicates() != 2*each {
		t.Errorf("counters of the old consumer: %+v", c)
	}
}
