package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

func TestBatchIsWrittenAsSetsWithoutItsBadMessage(t *testing.T) {
	t.Parallel()
	onEach(t, batchOfSets[pgx.Tx], batchOfSets[*sql.Tx])
}

// batchOfSets has six messages handled, the third of which fails in a statement, which aborts a
// transaction of PostgreSQL. The effects say how large the set was that they were written in.
func batchOfSets[TX any](t *testing.T, db *database[TX]) {
	inbox, err := consumer.New(db.Store, consumer.Config{Service: "stock", CacheSize: -1}, consumer.WithOutbox(db.Outbox))
	if err != nil {
		t.Fatal(err)
	}
	repaired := false
	h, err := inbox.HandleBatch("reserve", func(ctx context.Context, b *consumer.Batch[TX], msgs []*message.Message) error {
		var rows []string
		bad := ""
		for i, m := range msgs {
			rows = append(rows, fmt.Sprintf("(%d, '%s')", len(msgs), m.UUID))
			if _, err := b.Work(i).Write(ctx, producer.Event{Topic: "reserved"}); err != nil {
				return err
			}
			if m.UUID == number(2).String() && !repaired {
				bad = ", (NULL, '')"
			}
		}
		return db.Exec(ctx, b.DB(), `INSERT INTO effects (seq, id) VALUES `+strings.Join(rows, ", ")+bad)
	}, consumer.HandlerConfig{Topic: "orders", Group: consumer.GroupConfig{Size: 6, Wait: 20 * time.Second}, Retry: consumer.RetryConfig{QuickAttempts: 1}, Parked: consumer.ParkedConfig{MinBackoff: 1, MaxBackoff: 1}})
	if err != nil {
		t.Fatal(err)
	}
	wantRows := func(what string, n int) {
		t.Helper()
		if got := db.Number(`SELECT count(*) FROM ` + db.Table(what)); got != n {
			t.Errorf("%s has %d rows, want %d", what, got, n)
		}
	}
	consumeAll(t, h, msgs(6)...)
	db.WantEffects(t, 5)
	if n := db.Number(`SELECT count(*) FROM effects WHERE seq = 3`); n != 3 {
		t.Errorf("%d effects of sets of three", n)
	}
	wantRows("outbox_events", 5)
	wantRows("inbox", 6) // the parked one keeps its claim
	consumeAll(t, h, msgs(6)...)
	db.WantEffects(t, 5)
	if c := h.Counters(); c.Applied != 5 || c.Failed != 1 || c.Parked != 1 || c.DuplicatesByTable != 6 {
		t.Errorf("counters: %+v", c)
	}
	repaired = true
	runOnce(t, inbox)
	db.WantEffects(t, 6)
	wantRows("outbox_events", 6)
	wantRows("inbox_parked", 0)
}
