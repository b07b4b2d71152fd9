package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/boxpair/boxpair/producer"
)

const (
	customers   = 400
	skus        = 40
	maxQuantity = 5
	price       = 10
	// refused and declined are the approximate shares of orders that exceed the stock or the
	// accounts.
	refused  = 0.05
	declined = 0.08
)

func customerName(n int) string { return fmt.Sprintf("customer-%03d", n) }
func skuName(n int) string      { return fmt.Sprintf("sku-%02d", n) }

// newRun begins a run: it takes the next number, and fills the stock and the accounts for the
// coming orders, just short of the demand.
func newRun[TX any](ctx context.Context, dbs map[string]database[TX], orders int) (int64, error) {
	last, err := number(ctx, dbs[serviceOrders], `SELECT coalesce(max(id), 0) FROM runs`)
	if err != nil {
		return 0, err
	}
	run := last + 1
	average := float64(1+maxQuantity) / 2
	supply := int64(float64(orders) * average * (1 - refused) / skus)
	deposit := int64(float64(orders)*average*price*(1-refused)*(1-declined)/customers) + price

	inventory, payment := dbs[serviceInventory], dbs[servicePayment]
	err = inventory.Store().Transact(ctx, func(ctx context.Context, tx TX) error {
		for n := range skus {
			if err := fill(ctx, inventory, tx,
				`INSERT INTO supplies (run, sku, quantity) VALUES ($1, $2, $3)`,
				`INSERT INTO stock (sku, quantity) VALUES ($1, $2) ON CONFLICT (sku) DO UPDATE SET quantity = stock.quantity + excluded.quantity`,
				run, skuName(n), supply); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("fill up the stock: %w", err)
	}
	err = payment.Store().Transact(ctx, func(ctx context.Context, tx TX) error {
		for n := range customers {
			if err := fill(ctx, payment, tx,
				`INSERT INTO deposits (run, customer, amount) VALUES ($1, $2, $3)`,
				`INSERT INTO accounts (customer, balance) VALUES ($1, $2) ON CONFLICT (customer) DO UPDATE SET balance = accounts.balance + excluded.balance`,
				run, customerName(n), deposit); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("fill up the accounts: %w", err)
	}
	err = dbs[serviceOrders].Store().Transact(ctx, func(ctx context.Context, tx TX) error {
		_, err := dbs[serviceOrders].Exec(ctx, tx, `INSERT INTO runs (id, orders) VALUES ($1, $2)`, run, orders)
		return err
	})
	return run, err
}

// fill books an amount and adds it up.
func fill[TX any](ctx context.Context, db database[TX], tx TX, book, add string, run int64, name string, amount int64) error {
	if _, err := db.Exec(ctx, tx, book, run, name, amount); err != nil {
		return err
	}
	_, err := db.Exec(ctx, tx, add, name, amount)
	return err
}

// runShop places the unplaced orders of the newest run, and returns when all are placed.
func (s *system[TX]) runShop(ctx context.Context) error {
	db := s.dbs[serviceOrders]
	outbox, err := producer.New(db.Store(), producer.Config{Name: serviceOrders, Logger: s.logger})
	if err != nil {
		return err
	}
	run, err := number(ctx, db, `SELECT max(id) FROM runs`)
	if err != nil {
		return err
	}
	placed := make(map[string]bool)
	err = db.Query(ctx, fmt.Sprintf(`SELECT id FROM orders WHERE run = %d`, run), func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		placed[id] = true
		return err
	})
	if err != nil {
		return err
	}
	todo := make(chan order)
	parts := []func(context.Context) error{func(context.Context) error {
		defer close(todo)
		for n := range s.opts.Orders {
			if o := newOrder(run, n); !placed[o.ID] {
				todo <- o
			}
		}
		return nil
	}}
	for range s.opts.Concurrency {
		parts = append(parts, func(context.Context) error {
			for o := range todo {
				s.placeUntilDone(ctx, outbox, db, o)
			}
			return nil
		})
	}
	// A worker that ends must not end the other workers, but together would end them.
	return together(context.WithoutCancel(ctx), parts...)
}

// placeUntilDone places o, and retries while the database cannot be reached.
func (s *system[TX]) placeUntilDone(ctx context.Context, outbox *producer.Outbox[TX], db database[TX], o order) {
	for ctx.Err() == nil {
		err := place(ctx, outbox, db, o)
		if err == nil {
			return
		}
		if !errors.Is(err, context.Canceled) {
			s.logger.WarnContext(ctx, "placing an order failed, trying again", "order", o.ID, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// newOrder returns order n of a run; it depends on run and n only.
func newOrder(run int64, n int) order {
	random := rand.New(rand.NewPCG(uint64(run), uint64(n)))
	quantity := 1 + random.Int64N(maxQuantity)
	return order{
		ID: fmt.Sprintf("run-%d-order-%d", run, n), Run: run,
		Customer: customerName(random.IntN(customers)), SKU: skuName(random.IntN(skus)),
		Quantity: quantity, Amount: quantity * price,
	}
}
