package main

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport/memory"
)

// TestMain ignores the goroutine that GORM starts for prepared statements and never ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newShop returns a service on a database of its own, with a hundred packets of tea and of coffee.
func newShop(t *testing.T, cfg *gorm.Config) *service {
	t.Helper()
	db, err := open(t.Context(), testenv.Postgres(t), cfg)
	ok(t, err)
	t.Cleanup(func() { ok(t, db.drop(context.WithoutCancel(t.Context()))) })
	s, err := newService(db)
	ok(t, err)
	ok(t, s.stockUp(t.Context(), Stock{Item: "tea", Left: 100}, Stock{Item: "coffee", Left: 100}))
	return s
}

// eachConfig runs a test with the settings of GORM that change which transaction GORM hands out, or
// when it begins one.
func eachConfig(t *testing.T, test func(t *testing.T, s *service)) {
	t.Parallel()
	for name, cfg := range map[string]*gorm.Config{
		"plain": {}, "prepared statements": {PrepareStmt: true}, "no default transaction": {SkipDefaultTransaction: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newShop(t, cfg))
		})
	}
}

// wants checks the existing orders, and the orders with a waiting event.
func (s *service) wants(t *testing.T, orders, events string) {
	t.Helper()
	var ids []string
	ok(t, s.db.WithContext(t.Context()).Model(&Order{}).Order("id").Pluck("id", &ids).Error)
	if found := strings.Join(ids, " "); found != orders {
		t.Errorf("orders %q, want %q", found, orders)
	}
	var keys []string
	ok(t, s.db.WithContext(t.Context()).Table("outbox_status").Where("state = 'pending'").Order("id").Pluck("key", &keys).Error)
	if found := strings.Join(keys, " "); found != events {
		t.Errorf("events of orders %q, want %q", found, events)
	}
}

func TestOrderAndEventAreCommittedTogetherOrNotAtAll(t *testing.T) {
	eachConfig(t, func(t *testing.T, s *service) {
		ok(t, s.place(t.Context(), Order{ID: "1", Item: "tea", Amount: 1}))
		s.wants(t, "1", "1")
		changed := errors.New("changed my mind")
		place := func(id string, then func()) error {
			return s.db.WithContext(t.Context()).Transaction(func(db *gorm.DB) error {
				ok(t, s.placeIn(t.Context(), db, Order{ID: id, Item: "tea", Amount: 1}))
				then()
				return changed
			})
		}
		if err := place("2", func() {}); !errors.Is(err, changed) {
			t.Errorf("error is %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = place("3", func() { panic("at the disco") })
		}()
		if err := s.place(t.Context(), Order{ID: "1", Item: "coffee", Amount: 1}); err == nil {
			t.Error("an order was placed twice")
		}
		s.wants(t, "1", "1")
		ok(t, s.place(t.Context(), Order{ID: "2", Item: "tea", Amount: 1}))
		s.wants(t, "1 2", "1 2")
	})
}

// TestSavepointTakesModelAndEventBack rolls part of GORM's transaction back to a savepoint, and
// then writes more.
func TestSavepointTakesModelAndEventBack(t *testing.T) {
	eachConfig(t, func(t *testing.T, s *service) {
		gaveUp := errors.New("gave up")
		err := s.db.WithContext(t.Context()).Transaction(func(db *gorm.DB) error {
			tx, err := transactionOf(db)
			ok(t, err)
			w := s.outbox.Tx(tx)
			write := func(ctx context.Context, w *producer.Writer[*sql.Tx], id string) {
				ok(t, within(ctx, s.db, w.DB()).Create(&Order{ID: id}).Error)
				_, err := w.Write(ctx, producer.Event{Topic: topic, Key: id, Source: "batch", Version: 1})
				ok(t, err)
			}
			write(t.Context(), w, "1")
			err = w.Savepoint(t.Context(), func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
				write(ctx, w, "2")
				return gaveUp
			})
			if !errors.Is(err, gaveUp) {
				t.Errorf("error is %v", err)
			}
			write(t.Context(), w, "3")
			return nil
		})
		ok(t, err)
		s.wants(t, "1 3", "1 3")
	})
}

func TestStockSinksOnceForEveryOrder(t *testing.T) {
	eachConfig(t, func(t *testing.T, s *service) {
		for _, id := range []string{"1", "2", "3", "4"} {
			ok(t, s.place(t.Context(), Order{ID: id, Item: "tea", Amount: 5}))
		}
		var runs atomic.Int64
		var seen sync.Map
		failing, err := s.inbox.Handle("fails after its effect", func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
			runs.Add(1)
			err := s.take(ctx, w, msg)
			if _, again := seen.LoadOrStore(msg.UUID, true); err != nil || again {
				return err
			}
			return errors.New("after its effect")
		}, consumer.HandlerConfig{})
		ok(t, err)
		s.handler = failing
		relay := func(broker *memory.Broker) error {
			relay, err := relay.New(s.outbox, twice{twice{broker}}, relay.Config{})
			if err != nil {
				return err
			}
			report, err := relay.RunOnce(t.Context())
			if report.Delivered != 4 {
				t.Errorf("report: %+v", report)
			}
			return err
		}
		ok(t, s.consuming(t.Context(), relay))
		for item, want := range map[string]int{"tea": 100 - 4*5, "coffee": 100} {
			if left, err := s.left(t.Context(), item); err != nil || left != want {
				t.Errorf("%d of %s are left, %v, want %d", left, item, err, want)
			}
		}
		if c := failing.Counters(); c.Applied != 4 || c.Duplicates() != 12 || runs.Load() != 8 {
			t.Errorf("%d runs, counters %+v", runs.Load(), c)
		}
	})
}

func TestTransactionIsNeededAndNotJustADatabase(t *testing.T) {
	t.Parallel()
	s := newShop(t, &gorm.Config{})
	if tx, err := transactionOf(s.db.WithContext(t.Context())); err == nil {
		t.Errorf("a pool is a transaction: %v", tx)
	}
	if err := s.placeIn(t.Context(), s.db, Order{ID: "1"}); err == nil {
		t.Error("an order was placed outside any transaction")
	}
	s.wants(t, "", "")
}

func TestProgramTellsWhatBecameOfTheOrders(t *testing.T) {
	t.Parallel()
	report, err := run(t.Context(), testenv.Postgres(t))
	ok(t, err)
	if want := "3 orders placed, 3 applied, 3 copies refused, 88 of 100 left"; report != want {
		t.Errorf("it says %q, want %q", report, want)
	}
}

func TestAddressIsNeededAndNotShown(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "postgres://user:secret@[::1"} {
		_, err := run(t.Context(), url)
		if err == nil || !strings.Contains(err.Error(), "DATABASE_URL") || strings.Contains(err.Error(), "secret") {
			t.Errorf("error is %v", err)
		}
	}
}

// TestNestedTransactionOfGORMTakesItsEventsBack; the writer still counts the lost events.
func TestNestedTransactionOfGORMTakesItsEventsBack(t *testing.T) {
	eachConfig(t, func(t *testing.T, s *service) {
		gaveUp := errors.New("gave up")
		err := s.db.WithContext(t.Context()).Transaction(func(db *gorm.DB) error {
			tx, err := transactionOf(db)
			ok(t, err)
			w := s.outbox.Tx(tx)
			err = db.Transaction(func(db *gorm.DB) error {
				ok(t, db.Create(&Order{ID: "1"}).Error)
				_, err := w.Write(t.Context(), producer.Event{Topic: topic, Key: "1", Source: "batch", Version: 1})
				ok(t, err)
				return gaveUp
			})
			if !errors.Is(err, gaveUp) {
				t.Errorf("error is %v", err)
			}
			ok(t, db.Create(&Order{ID: "2"}).Error)
			written, err := w.Write(t.Context(), producer.Event{Topic: topic, Key: "2", Source: "batch", Version: 1})
			if err != nil || written[0] != idgen.Of("shop", "batch", 1, 1) {
				t.Errorf("wrote %v, %v", written, err)
			}
			return nil
		})
		ok(t, err)
		s.wants(t, "2", "2")
	})
}
