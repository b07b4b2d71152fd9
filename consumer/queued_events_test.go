package consumer_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

// What puts the events of a key in order may be the lock of a statement that is queued before them.
func TestQueuedEventsGoBehindWhatTheHandlerHasQueuedForTheCommit(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]consumer.HandlerConfig{
		"alone": {}, "optimistic": {Optimistic: true}, "in a group": {Group: consumer.GroupConfig{Size: 8}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := newPostgres(t)
			count := "INSERT INTO effects (seq, id) SELECT count(*), 'events before' FROM " + db.Table("outbox_events")
			_, h := handle(t, db, consumer.Config{}, cfg, func(_ context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
				if _, err := w.Write(t.Context(), producer.Event{Topic: "reserved"}); err != nil {
					return err
				}
				return postgres.AtCommit(w.DB(), count)
			})
			if err := h.Consume(msg(1)); err != nil {
				t.Fatal(err)
			}
			if n := db.Number("SELECT seq FROM effects"); n != 0 {
				t.Errorf("%d events were written before", n)
			}
			if n := db.Number("SELECT count(*) FROM " + db.Table("outbox_events")); n != 1 {
				t.Errorf("%d events are written, want 1", n)
			}
		})
	}
}
