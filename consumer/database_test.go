package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

func TestManyConsumersRacingOverTheSameDispatchesApplyEachOnce(t *testing.T) {
	t.Parallel()
	onEach(t, racing[pgx.Tx], racing[*sql.Tx])
}

func racing[TX any](t *testing.T, db *database[TX]) {
	const dispatches = 200
	var handlers []*consumer.Handler[TX]
	for range 4 { // processes
		for _, level := range db.Levels() {
			_, h := handle(t, db, consumer.Config{CacheSize: 1}, consumer.HandlerConfig{Isolation: level},
				func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
					if err := db.Do(ctx, w); err != nil {
						return err
					}
					_, err := w.Write(ctx, producer.Event{Topic: "reserved"})
					return err
				})
			handlers = append(handlers, h)
		}
	}
	var wg sync.WaitGroup
	for n := range 32 {
		wg.Go(func() {
			for i := range dispatches {
				if err := handlers[n%len(handlers)].Consume(msg(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	db.WantEffects(t, dispatches)
	if n := db.Number(`SELECT count(*) FROM ` + db.Table("outbox_events")); n != dispatches {
		t.Errorf("%d events written, want %d", n, dispatches)
	}
	var applied, suppressed int64
	for _, h := range handlers {
		applied += h.Counters().Applied
		suppressed += h.Counters().Duplicates()
	}
	if applied != dispatches || suppressed != 31*dispatches {
		t.Errorf("%d applied, %d suppressed", applied, suppressed)
	}
}

func TestEventsAndEffectsOfAFailedAttemptAreRolledBack(t *testing.T) {
	t.Parallel()
	onEach(t, rolledBack[pgx.Tx], rolledBack[*sql.Tx])
}

func rolledBack[TX any](t *testing.T, db *database[TX]) {
	tries := 0
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickBackoff: 1}},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			if err := db.Do(ctx, w); err != nil {
				return err
			}
			if _, err := w.Write(ctx, producer.Event{Topic: "reserved", Payload: []byte("x")}); err != nil {
				return err
			}
			if tries++; tries < 3 {
				return errHandler
			}
			return nil
		})
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	db.WantEffects(t, 1)
	if n := db.Number(`SELECT count(*) FROM ` + db.Table("outbox_events")); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestParkedMessagesSurviveARestartWhole(t *testing.T) {
	t.Parallel()
	onEach(t, survives[pgx.Tx], survives[*sql.Tx])
}

func survives[TX any](t *testing.T, db *database[TX]) {
	var first, second *message.Message
	m := keyed(1, "customer-7")
	m.Metadata["zero"] = "a\x00b"
	m.Metadata["bytes"] = "\xff\xfe"
	m.Metadata["\x00"] = ""
	m.Payload = []byte{0, 1, 0xff}
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
		func(_ context.Context, _ *consumer.Work[TX], m *message.Message) error {
			first = m
			return consumer.RetryAfter(0, fmt.Errorf("a\x00b\xff %w", errHandler))
		})
	if err := h.Consume(m); err != nil {
		t.Fatal(err)
	}
	inbox, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[TX], m *message.Message) error {
			second = m
			if w.Event().Key != "customer-7" || w.Event().CorrelationID != "conversation" || w.Event().Topic != "orders" {
				t.Errorf("%+v", w.Event())
			}
			return db.Do(ctx, w)
		})
	if err := inbox.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second == nil || !first.Equals(second) {
		t.Fatalf("first %+v, then %+v", first, second)
	}
	if err := h.Consume(m); err != nil {
		t.Fatal(err)
	}
	db.WantEffects(t, 1)
	if c := h.Counters(); c.Applied != 1 || c.Duplicates() != 1 {
		t.Errorf("counters: %+v", c)
	}
}

func TestOrderOfKeysIsKeptThroughFailuresAndProcesses(t *testing.T) {
	t.Parallel()
	onEach(t, inOrder[pgx.Tx], inOrder[*sql.Tx])
}

// inOrder has five keys handled by two processes, with every third message failing at
// first, and checks the order in which each key was applied.
func inOrder[TX any](t *testing.T, db *database[TX]) {
	const keys, perKey = 5, 12
	var mu sync.Mutex
	failed := make(map[string]int)
	fn := func(ctx context.Context, w *consumer.Work[TX], m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if failed[m.UUID]++; failed[m.UUID] < 3 && w.Event().ID[15]%3 == 0 {
			return errHandler
		}
		return db.Exec(ctx, w.DB(), fmt.Sprintf(`INSERT INTO effects (seq, id) SELECT %d, '%s' FROM (SELECT 1) x`,
			int(w.Event().ID[15]), w.Event().Key))
	}
	hc := consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Retry: consumer.RetryConfig{QuickAttempts: 1}, Parked: consumer.ParkedConfig{MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var runs, deliveries sync.WaitGroup
	handlers := make([]*consumer.Handler[TX], 2)
	for i := range handlers {
		var inbox *consumer.Inbox[TX]
		inbox, handlers[i] = handle(t, db, consumer.Config{PollInterval: 10 * time.Millisecond}, hc, fn)
		runs.Go(func() {
			if err := inbox.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	for k := range keys {
		deliveries.Go(func() { // one message of a key is delivered at a time
			for n := range perKey {
				if err := handlers[n%2].Consume(keyed(n*keys+k, fmt.Sprintf("key-%d", k))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	deliveries.Wait()
	waitFor(t, func() bool { return db.Number(`SELECT count(*) FROM effects`) == keys*perKey })
	cancel()
	runs.Wait()
	for k := range keys {
		// Every effect must be later than all with lower numbers of its key.
		n := db.Number(fmt.Sprintf(`SELECT count(*) FROM effects a JOIN effects b ON a.id = b.id AND a.seq < b.seq AND a.%[1]s > b.%[1]s WHERE a.id = 'key-%[2]d'`,
			rowID(db), k))
		if n != 0 {
			t.Errorf("key %d: %d pairs applied in the wrong order", k, n)
		}
	}
}

func TestTwoConsumersOnOneDatabaseBothApply(t *testing.T) {
	t.Parallel()
	onEach(t, twoConsumers[pgx.Tx], twoConsumers[*sql.Tx])
}

func twoConsumers[TX any](t *testing.T, db *database[TX]) {
	inbox, reserve := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error { return db.Do(ctx, w) })
	mail, err := inbox.Handle("mail",
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error { return db.Do(ctx, w) }, consumer.HandlerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, h := range []*consumer.Handler[TX]{reserve, mail} {
			if err := h.Consume(msg(1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := db.Number(`SELECT count(*) FROM effects`); n != 2 {
		t.Errorf("%d effects, want one of each handler", n)
	}
}

func TestRefusedAndDeadMessagesCanBeRedriven(t *testing.T) {
	t.Parallel()
	onEach(t, redriven[pgx.Tx], redriven[*sql.Tx])
}

func redriven[TX any](t *testing.T, db *database[TX]) {
	fixed := false
	in, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			if !fixed {
				return consumer.Reject(errHandler)
			}
			return db.Do(ctx, w)
		})
	for _, m := range []*message.Message{msg(1), message.NewMessage("no-uuid", []byte("x")), message.NewMessage("", nil)} {
		if err := h.Consume(m); err != nil {
			t.Fatal(err)
		}
	}
	stats, err := h.Stats(t.Context())
	if err != nil || stats.Dead != 3 {
		t.Fatalf("Stats: %+v, %v", stats, err)
	}
	fixed = true
	ids, err := in.Redrive(t.Context(), inbox.Filter{Consumer: h.Name()}, "handler is mended")
	if err != nil || len(ids) != 3 || !slices.Contains(ids, number(1)) || slices.Contains(ids, uuid.Nil) {
		t.Fatalf("Redrive: %v, %v", ids, err)
	}
	if err := in.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.WantEffects(t, 3)
	if err := h.Consume(msg(1)); err != nil { // its copies stay duplicates
		t.Fatal(err)
	}
	db.WantEffects(t, 3)
}

func TestNewConsumerReadsHistoryOfAnyAge(t *testing.T) {
	t.Parallel()
	onEach(t, history[pgx.Tx], history[*sql.Tx])
}

func history[TX any](t *testing.T, db *database[TX]) {
	inbox, h := handle(t, db, consumer.Config{Window: time.Hour}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error { return db.Do(ctx, w) })
	if err := inbox.RunOnce(t.Context()); err != nil { // would it forget, all history were too old
		t.Fatal(err)
	}
	for range 2 {
		for n := range 3 {
			e := event(n)
			e.Stamp = time.Now().AddDate(-1, 0, 0)
			if err := h.Consume(fresh(e)); err != nil {
				t.Fatal(err)
			}
		}
		if err := inbox.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	db.WantEffects(t, 3)
}

func TestWindowIsWarmedInTheOrderOfApplication(t *testing.T) {
	t.Parallel()
	onEach(t, warmed[pgx.Tx], warmed[*sql.Tx])
}

func warmed[TX any](t *testing.T, db *database[TX]) {
	fn := func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error { return db.Do(ctx, w) }
	_, h := handle(t, db, consumer.Config{}, consumer.HandlerConfig{}, fn)
	for n := range 5 {
		if err := h.Consume(msg(n)); err != nil {
			t.Fatal(err)
		}
	}
	_, h = handle(t, db, consumer.Config{CacheSize: 2}, consumer.HandlerConfig{}, fn)
	for _, n := range []int{4, 3} {
		if err := h.Consume(msg(n)); err != nil {
			t.Fatal(err)
		}
	}
	if c := h.Counters(); c.DuplicatesByWindow != 2 {
		t.Errorf("counters: %+v", c)
	}
}

func TestLogsTellNoContent(t *testing.T) {
	t.Parallel()
	db, _ := newPostgres(t)
	if err := db.Execute(t, `CREATE TABLE secrets (word TEXT UNIQUE); INSERT INTO secrets VALUES ('secret payload')`); err != nil {
		t.Fatal(err)
	}
	log := &logBuffer{}
	in, h := handle(t, db, consumer.Config{Logger: textLogger(log)}, consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1, MaxAttempts: 2}, Parked: consumer.ParkedConfig{MinBackoff: 1}},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], m *message.Message) error {
			_, err := w.DB().Exec(ctx, `INSERT INTO secrets VALUES ($1)`, string(m.Payload))
			return err // whose detail shows the row
		})
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
	if err := in.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := in.ListParked(t.Context(), inbox.Filter{})
	if err != nil || len(found) != 1 || found[0].State != inbox.Dead {
		t.Fatalf("parked: %+v, %v", found, err)
	}
	if !strings.Contains(found[0].LastError, "23505") {
		t.Errorf("last error: %q", found[0].LastError)
	}
	for what, text := range map[string]string{"the log": log.String(), "the last error": found[0].LastError} {
		if strings.Contains(text, "secret payload") {
			t.Errorf("%s tells content:\n%s", what, text)
		}
	}
}
