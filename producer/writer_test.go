package producer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

type writer = producer.Writer[*fakeTx]

func newOutbox(t *testing.T, store outbox.Store[*fakeTx], cfg producer.Config) *producer.Outbox[*fakeTx] {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "orders"
	}
	o, err := producer.New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func placed(version int64) producer.Event {
	return producer.Event{Topic: "order", Key: "42", Source: "order/42", Version: version, Payload: []byte("{}")}
}

func TestDispatchIDsCountTheEventsOfOneVersionInOneTransaction(t *testing.T) {
	t.Parallel()
	outbox := newOutbox(t, &fakeEvents{}, producer.Config{})
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		first, err := w.Write(ctx, placed(1), placed(1), placed(2))
		if err != nil {
			return err
		}
		queued, err := w.Write(ctx, placed(1))
		if err != nil {
			return err
		}
		got := []uuid.UUID{first[0], first[1], first[2], queued[0]}
		want := []uuid.UUID{
			idgen.Of("orders", "order/42", 1, 0), idgen.Of("orders", "order/42", 1, 1),
			idgen.Of("orders", "order/42", 2, 0), idgen.Of("orders", "order/42", 1, 2),
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("event %d: dispatch ID %s, want %s", i, got[i], want[i])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestARepeatedTransactionWritesTheSameEventsAndIsToldSo(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	var known []bool
	for range 2 {
		err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
			written, err := w.WriteNow(ctx, placed(1))
			if err == nil {
				known = append(known, written[0].Known)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(store.committed) != 1 || known[0] || !known[1] {
		t.Errorf("%d events committed, known %v; want 1, [false true]", len(store.committed), known)
	}
}

func TestASavepointRolledBackTakesItsCountAlong(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	boom := errors.New("boom")
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		if _, err := w.Write(ctx, placed(1)); err != nil {
			return err
		}
		err := w.Savepoint(ctx, func(ctx context.Context, w *writer) error {
			if _, err := w.Write(ctx, placed(1)); err != nil {
				return err
			}
			if _, err := w.Write(ctx, placed(1)); err != nil {
				return err
			}
			return boom
		})
		if !errors.Is(err, boom) {
			t.Errorf("Savepoint: %v, want %v", err, boom)
		}
		_, err = w.Write(ctx, placed(1))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(store.committed) != 2 {
		t.Fatalf("%d events committed, want 2", len(store.committed))
	}
	for n, r := range store.committed {
		if want := idgen.Of("orders", "order/42", 1, n); r.ID != want {
			t.Errorf("event %d: dispatch ID %s, want %s", n, r.ID, want)
		}
	}
}

func TestASecondWriterOnOneTransactionIsRefused(t *testing.T) {
	t.Parallel()
	out, tx := newOutbox(t, &fakeEvents{}, producer.Config{}), &fakeTx{}
	if _, err := out.Tx(tx).Write(t.Context(), placed(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Tx(tx).Write(t.Context(), placed(1)); !errors.Is(err, outbox.ErrSecondWriter) {
		t.Errorf("second writer: %v, want %v", err, outbox.ErrSecondWriter)
	}
}

func TestASwallowedWriteErrorIsNotCommitted(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	out := newOutbox(t, store, producer.Config{})
	write := func(payload string) error {
		return out.Transact(t.Context(), func(ctx context.Context, w *writer) error {
			e := placed(1)
			e.Payload = []byte(payload)
			_ = w.Savepoint(ctx, func(ctx context.Context, w *writer) error {
				_, err := w.Write(ctx, e)
				return err
			})
			return nil
		})
	}
	if err := write("one"); err != nil {
		t.Fatal(err)
	}
	if err := write("other"); !errors.Is(err, outbox.ErrConflict) {
		t.Errorf("same dispatch ID with other content: %v, want %v", err, outbox.ErrConflict)
	}
}

func TestEventsQueuedBeforeAWriteAreWrittenBeforeIt(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{}
	outbox := newOutbox(t, store, producer.Config{})
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		if _, err := w.Write(ctx, placed(1)); err != nil {
			return err
		}
		_, err := w.Write(ctx, placed(2))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(store.committed) != 2 || store.committed[0].Version != 1 {
		t.Errorf("committed %v", store.committed)
	}
}

func TestEventsDoNotWaitInATransactionOfTheCaller(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{}
	w := newOutbox(t, &fakeEvents{}, producer.Config{}).Tx(tx)
	if _, err := w.Write(t.Context(), placed(1)); err != nil || len(tx.records) != 1 {
		t.Errorf("%d events were written, %v", len(tx.records), err)
	}
}

func TestAnInvalidEventNamesTheFieldNotTheValueAndWritesNothing(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("secret", 50)
	for field, e := range map[string]producer.Event{
		"Topic":                {Source: "s"},
		"Key":                  {Topic: "t", Source: "s", Key: long},
		"Type":                 {Topic: "t", Source: "s", Type: "a\x00b"},
		"Source":               {Topic: "t", Source: "\xff"},
		"Payload":              {Topic: "t", Source: "s", Payload: make([]byte, 9)},
		"Headers":              {Topic: "t", Source: "s", Headers: map[string]string{transport.MetaKey: "v"}},
		"Config.MaxHeaders":    {Topic: "t", Source: "s", Headers: map[string]string{"h": long}},
		"SchemaVersion":        {Topic: "t", Source: "s", SchemaVersion: -1},
		"TraceState":           {Topic: "t", Source: "s", TraceState: long + long},
		"Random":               {Topic: "t", Source: "s", Random: true},
		"has no identity":      {Topic: "t"},
		"Version besides":      {Topic: "t", Source: "s", IdempotencyKey: "k", Version: 1},
		"Version: 0 is less":   {Topic: "t", Source: "s"},
		"Version: -1 is less":  {Topic: "t", Source: "s", Version: -1},
		"IdempotencyKey: has ": {Topic: "t", Source: "s", IdempotencyKey: long},
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			tx := &fakeTx{}
			w := newOutbox(t, &fakeEvents{}, producer.Config{MaxPayload: 8, MaxHeaders: 16}).Tx(tx)
			_, err := w.Write(t.Context(), placed(1), e)
			if err == nil || !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %v does not name %s, or shows its value", err, field)
			}
			if len(tx.records) != 0 {
				t.Error("an event was written")
			}
			if written, err := w.Write(t.Context(), placed(1)); err != nil || written[0] != idgen.Of("orders", "order/42", 1, 0) {
				t.Errorf("the writer is not as it was before: %v, %v", written, err)
			}
		})
	}
}

// TestASourceAloneIsNoIdentity: two logins of a user, written without a version, would be one
// event.
func TestASourceAloneIsNoIdentity(t *testing.T) {
	t.Parallel()
	outbox, tx := newOutbox(t, &fakeEvents{}, producer.Config{}), &fakeTx{}
	login := producer.Event{Topic: "user.logged_in", Source: "user/42", Payload: []byte("{}")}
	_, err := outbox.Tx(tx).Write(t.Context(), login)
	if !errors.Is(err, producer.ErrNoIdentity) || !strings.Contains(err.Error(), "Version") || !strings.Contains(err.Error(), "IdempotencyKey") || !strings.Contains(err.Error(), "Random") {
		t.Errorf("error %v does not name the field and what to set instead", err)
	}
	cause := transport.Event{ID: uuid.New()}
	if _, err := outbox.Handling(&fakeTx{}, "audit", cause).Write(t.Context(), login); !errors.Is(err, producer.ErrNoIdentity) {
		t.Errorf("in a handler: %v", err)
	}
	if len(tx.records) != 0 {
		t.Errorf("%d events were written", len(tx.records))
	}
}

func TestAHandlersEventsAreChildrenOfItsCause(t *testing.T) {
	t.Parallel()
	cause := transport.Event{ID: uuid.New(), TraceParent: "00-1-2-01", TraceState: "x=y"}
	tx := &fakeTx{}
	w := newOutbox(t, &fakeEvents{}, producer.Config{}).Handling(tx, "stock/reserve", cause)
	written, err := w.Write(t.Context(), producer.Event{Topic: "stock"}, producer.Event{Topic: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	for n := range written {
		if want := idgen.Child("stock/reserve", cause.ID, n); written[n] != want {
			t.Errorf("event %d: dispatch ID %s, want %s", n, written[n], want)
		}
		r := tx.records[n]
		if r.CorrelationID != cause.ID.String() || r.TraceParent != cause.TraceParent || r.TraceState != cause.TraceState {
			t.Errorf("event %d did not inherit correlation and trace context: %+v", n, r.Event)
		}
	}
}

func TestAConflictingTransactionIsRunAgainWithAFreshWriter(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{commitErr: []error{errConflictOfTransactions, errConflictOfTransactions}}
	outbox := newOutbox(t, store, producer.Config{MaxTransactAttempts: 3})
	err := outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		_, err := w.Write(ctx, placed(1))
		return err
	})
	if err != nil || store.begun != 3 {
		t.Fatalf("%d transactions, error %v; want 3, nil", store.begun, err)
	}
	if want := idgen.Of("orders", "order/42", 1, 0); store.committed[0].ID != want {
		t.Errorf("dispatch ID %s, want %s", store.committed[0].ID, want)
	}
	store.commitErr = []error{errConflictOfTransactions, errConflictOfTransactions, errConflictOfTransactions}
	err = outbox.Transact(t.Context(), func(context.Context, *writer) error { return nil })
	if !errors.Is(err, errConflictOfTransactions) {
		t.Errorf("after the last attempt: %v", err)
	}
}

func TestAnUnknownCommitIsNotRunAgain(t *testing.T) {
	t.Parallel()
	store := &fakeEvents{commitErr: []error{outbox.ErrCommitUnknown}}
	out := newOutbox(t, store, producer.Config{})
	err := out.Transact(t.Context(), func(context.Context, *writer) error { return nil })
	if !errors.Is(err, outbox.ErrCommitUnknown) || store.begun != 1 {
		t.Errorf("%d transactions, error %v", store.begun, err)
	}
}

func TestLockKeysLocksEachKeyOnceInOrder(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{}
	w := newOutbox(t, &fakeEvents{}, producer.Config{LockKeys: true}).Tx(tx)
	var events []producer.Event
	for n, key := range []string{"b", "a", "", "b"} {
		events = append(events, producer.Event{Topic: "t", Key: key, Source: "s", Version: int64(n) + 1})
	}
	if _, err := w.Write(t.Context(), events...); err != nil {
		t.Fatal(err)
	}
	if strings.Join(tx.locked, " ") != "a b" {
		t.Errorf("locked %q, want a b", tx.locked)
	}
}

func TestConfigErrorsNameTheirFields(t *testing.T) {
	t.Parallel()
	_, err := producer.New[*fakeTx](nil, producer.Config{MaxPayload: -1, MaxHeaders: 1 << 20, MaxTransactAttempts: -1, NotifyInterval: -1})
	for _, field := range []string{"Name", "MaxPayload", "MaxHeaders", "MaxTransactAttempts", "NotifyInterval", "store"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

// TestCommitsWakeRelaysElsewhereAtOnce, unless there are too many for that.
func TestCommitsWakeRelaysElsewhereAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &fakeEvents{notified: make(chan string, 100)}
		outbox := newOutbox(t, store, producer.Config{NotifyInterval: time.Second})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- outbox.Run(ctx) }()
		synctest.Wait()
		commits := func(n int, apart time.Duration, want int) {
			t.Helper()
			for range n {
				outbox.Committed()
				synctest.Wait()
				time.Sleep(apart)
			}
			synctest.Wait()
			if got := len(store.notified); got != want {
				t.Errorf("%d wake-ups for %d commits that are %v apart, want %d", got, n, apart, want)
			}
			for len(store.notified) > 0 {
				<-store.notified
			}
		}
		commits(20, 0, 20)
		commits(30, 0, 1)                    // the last of the burst
		commits(50, 100*time.Millisecond, 5) // on average one in a second, for those left over, too
		time.Sleep(time.Minute)
		commits(20, 0, 20)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestWakeUpsTellOfAllShardsWrittenSinceTheLast in one text, which is the same in all releases.
func TestWakeUpsTellOfAllShardsWrittenSinceTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &fakeEvents{notified: make(chan string, 100)}
		outbox := newOutbox(t, store, producer.Config{NotifyInterval: time.Second})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- outbox.Run(ctx) }()
		synctest.Wait()
		told := func(want uint64) {
			t.Helper()
			time.Sleep(2 * time.Second)
			if len(store.notified) != 1 {
				t.Fatalf("%d wake-ups", len(store.notified))
			}
			if text := <-store.notified; !strings.HasPrefix(text, fmt.Sprintf("1 %016x 0 ", want)) || len(text) > 255 {
				t.Errorf("told %q", text)
			}
		}
		a, b, c := uint64(1)<<idgen.Shard("a", uuid.Nil), uint64(1)<<idgen.Shard("b", uuid.Nil), uint64(1)<<idgen.Shard("c", uuid.Nil)
		if a == b || b == c || a == c {
			t.Fatal("keys of one shard")
		}
		transact := func(keys ...string) {
			err := outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*fakeTx]) error {
				for _, key := range keys {
					if _, err := w.Write(ctx, producer.Event{Topic: "topic", Key: key, Source: key, Version: 1}); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		transact("a")
		told(a)
		transact("b")
		synctest.Wait()
		transact("b", "c")
		transact("a")
		synctest.Wait()
		if text := <-store.notified; !strings.HasPrefix(text, fmt.Sprintf("1 %016x 0 ", b)) {
			t.Errorf("told %q at once", text)
		}
		told(a | b | c)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
