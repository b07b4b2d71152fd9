package consumer_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

// TestRunningProcessesAreListedInTheDatabase for a process without handlers of its own, as an
// operator's command.
func TestRunningProcessesAreListedInTheDatabase(t *testing.T) {
	t.Parallel()
	onEach(t, runningProcessesAreListed[pgx.Tx], runningProcessesAreListed[*sql.Tx])
}

func runningProcessesAreListed[TX any](t *testing.T, db *database[TX]) {
	operator, err := consumer.New(db.Store, consumer.Config{Service: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	listed := func() []inbox.RunningHandler {
		list, err := operator.ListHandlers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	var ends []func()
	for range 2 {
		in, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{}, func(_ context.Context, w *consumer.Work[TX], _ *message.Message) error { return db.Do(t.Context(), w) })
		if err := h.Consume(msg(1)); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- in.Run(ctx) }()
		ends = append(ends, func() {
			end()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	waitFor(t, func() bool { return len(listed()) == 2 })
	list := listed()
	for i := range list {
		h := &list[i]
		if h.Consumer != "stock/reserve" || h.Applied+h.Duplicates != 1 || h.ReportedAt.IsZero() || h.StartedAt.After(h.ReportedAt) || len(h.Topics) != 1 || h.LastSuccess.IsZero() != (h.Applied == 0) {
			t.Errorf("listed: %+v", h)
		}
	}
	if list[0].Name == list[1].Name || list[0].Applied+list[1].Applied != 1 {
		t.Errorf("listed: %+v", list)
	}
	ends[0]()
	if n := len(listed()); n != 1 {
		t.Errorf("after one process has ended, %d are listed", n)
	}
	ends[1]()
	if n := len(listed()); n != 0 {
		t.Errorf("after both have ended, %d are listed", n)
	}
}
