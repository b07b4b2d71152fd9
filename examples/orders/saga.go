package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

// The topics. The key of every event is the customer.
const (
	topicOrder   = "order"
	topicStock   = "stock"
	topicPayment = "payment"
)

// The types of events.
const (
	orderPlaced     = "order.placed"
	orderConfirmed  = "order.confirmed"
	orderCancelled  = "order.cancelled"
	stockReserved   = "stock.reserved"
	stockRefused    = "stock.refused"
	stockReleased   = "stock.released"
	paymentCaptured = "payment.captured"
	paymentDeclined = "payment.declined"
)

// order is the payload of every event: the data that the next step needs.
type order struct {
	ID       string `json:"id"`
	Run      int64  `json:"run"`
	Customer string `json:"customer"`
	Seq      int64  `json:"seq"` // numbers the emitting service's events of the customer
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
	Amount   int64  `json:"amount"`
}

// subscription is one handler of one service on one topic: a consumer.
type subscription struct {
	service string
	topic   string
}

// consumer returns the consumer's name, which its inbox rows carry.
func (s subscription) consumer() string { return s.service + "/" + s.topic }

// subscriptions lists the topics of each service.
var subscriptions = []subscription{
	{serviceInventory, topicOrder},
	{servicePayment, topicStock},
	{serviceOrders, topicStock},
	{serviceOrders, topicPayment},
}

// saga holds the steps of one service.
type saga[TX any] struct {
	db database[TX]
}

// handle is the handler of every subscription. Its changes, its event and the inbox row of msg are
// committed together or not at all.
func (s saga[TX]) handle(sub subscription) func(context.Context, *consumer.Work[TX], *message.Message) error {
	return func(ctx context.Context, w *consumer.Work[TX], msg *message.Message) error {
		var o order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return consumer.Reject(fmt.Errorf("read order: %w", err))
		}
		_, err := s.db.Exec(ctx, w.DB(),
			`INSERT INTO effects (consumer, dispatch_id, topic, customer, seq) VALUES ($1, $2, $3, $4, $5)`,
			sub.consumer(), msg.UUID, sub.topic, o.Customer, o.Seq)
		if err != nil {
			return err
		}
		switch kind := w.Event().Type; kind {
		case orderPlaced:
			return s.reserve(ctx, w, o)
		case orderConfirmed:
			return s.ship(ctx, w, o)
		case orderCancelled:
			return s.release(ctx, w, o)
		case stockReserved:
			if sub.service == servicePayment {
				return s.capture(ctx, w, o)
			}
		case stockRefused, paymentDeclined:
			if sub.service == serviceOrders {
				return s.decide(ctx, w, o, "cancelled", orderCancelled)
			}
		case paymentCaptured:
			return s.decide(ctx, w, o, "confirmed", orderConfirmed)
		case stockReleased:
		default:
			return consumer.Reject(fmt.Errorf("event type %q is not known", kind))
		}
		return nil
	}
}

// reserve takes stock for a placed order, if there is enough.
func (s saga[TX]) reserve(ctx context.Context, w *consumer.Work[TX], o order) error {
	taken, err := s.db.Exec(ctx, w.DB(),
		`UPDATE stock SET quantity = quantity - $1 WHERE sku = $2 AND quantity >= $1`, o.Quantity, o.SKU)
	if err != nil {
		return err
	}
	if taken == 0 {
		return s.emit(ctx, w, topicStock, stockRefused, o)
	}
	_, err = s.db.Exec(ctx, w.DB(),
		`INSERT INTO reservations (order_id, sku, quantity, status) VALUES ($1, $2, $3, 'reserved')`, o.ID, o.SKU, o.Quantity)
	if err != nil {
		return err
	}
	return s.emit(ctx, w, topicStock, stockReserved, o)
}

// ship ends the reservation of a confirmed order.
func (s saga[TX]) ship(ctx context.Context, w *consumer.Work[TX], o order) error {
	return s.mustChange(ctx, w, `UPDATE reservations SET status = 'shipped' WHERE order_id = $1 AND status = 'reserved'`, o.ID)
}

// release is the compensation: the stock reserved for a cancelled order is put back. A refused
// order has no reservation.
func (s saga[TX]) release(ctx context.Context, w *consumer.Work[TX], o order) error {
	released, err := s.db.Exec(ctx, w.DB(),
		`UPDATE reservations SET status = 'released' WHERE order_id = $1 AND status = 'reserved'`, o.ID)
	if err != nil || released == 0 {
		return err
	}
	_, err = s.db.Exec(ctx, w.DB(), `UPDATE stock SET quantity = quantity + $1 WHERE sku = $2`, o.Quantity, o.SKU)
	if err != nil {
		return err
	}
	return s.emit(ctx, w, topicStock, stockReleased, o)
}

// capture takes the money for a reserved order, if the customer's balance suffices.
func (s saga[TX]) capture(ctx context.Context, w *consumer.Work[TX], o order) error {
	taken, err := s.db.Exec(ctx, w.DB(),
		`UPDATE accounts SET balance = balance - $1 WHERE customer = $2 AND balance >= $1`, o.Amount, o.Customer)
	if err != nil {
		return err
	}
	status, kind := "captured", paymentCaptured
	if taken == 0 {
		status, kind = "declined", paymentDeclined
	}
	_, err = s.db.Exec(ctx, w.DB(),
		`INSERT INTO payments (order_id, customer, amount, status) VALUES ($1, $2, $3, $4)`, o.ID, o.Customer, o.Amount, status)
	if err != nil {
		return err
	}
	return s.emit(ctx, w, topicPayment, kind, o)
}

// decide sets the final state of an order.
func (s saga[TX]) decide(ctx context.Context, w *consumer.Work[TX], o order, status, kind string) error {
	if err := s.mustChange(ctx, w, `UPDATE orders SET status = $1 WHERE id = $2 AND status = 'placed'`, status, o.ID); err != nil {
		return err
	}
	return s.emit(ctx, w, topicOrder, kind, o)
}

func (s saga[TX]) mustChange(ctx context.Context, w *consumer.Work[TX], query string, args ...any) error {
	n, err := s.db.Exec(ctx, w.DB(), query, args...)
	if err == nil && n != 1 {
		return fmt.Errorf("%d rows changed instead of 1", n)
	}
	return err
}

// emit writes an event with the effects of the handled message. The event needs no identity: its
// dispatch ID is a child of the handled message's ID.
func (s saga[TX]) emit(ctx context.Context, w *consumer.Work[TX], topic, kind string, o order) error {
	event, err := s.event(ctx, w.DB(), topic, kind, o)
	if err != nil {
		return err
	}
	_, err = w.Write(ctx, event)
	return err
}

// event numbers the customer's next event. Its row lock, held until the end of the transaction,
// puts the customer's events in order.
func (s saga[TX]) event(ctx context.Context, tx TX, topic, kind string, o order) (producer.Event, error) {
	err := s.db.Row(ctx, tx, `INSERT INTO sequences (customer, seq) VALUES ($1, 1)
		ON CONFLICT (customer) DO UPDATE SET seq = sequences.seq + 1 RETURNING seq`, []any{o.Customer}, &o.Seq)
	if err != nil {
		return producer.Event{}, fmt.Errorf("number event: %w", err)
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return producer.Event{}, err
	}
	return producer.Event{Topic: topic, Key: o.Customer, Type: kind, Payload: payload, ContentType: "application/json"}, nil
}

// place writes an order and its event in one transaction. An order that exists already stays
// unchanged, so a shop that was killed, or lost the answer to a commit, can place the order again.
func place[TX any](ctx context.Context, outbox *producer.Outbox[TX], db database[TX], o order) error {
	return outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[TX]) error {
		var id string
		err := db.Row(ctx, w.DB(), `INSERT INTO orders (id, run, customer, sku, quantity, amount, status)
			VALUES ($1, $2, $3, $4, $5, $6, 'placed') ON CONFLICT (id) DO NOTHING RETURNING id`,
			[]any{o.ID, o.Run, o.Customer, o.SKU, o.Quantity, o.Amount}, &id)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		event, err := saga[TX]{db}.event(ctx, w.DB(), topicOrder, orderPlaced, o)
		if err != nil {
			return err
		}
		event.Source, event.Version = "order/"+o.ID, 1
		_, err = w.Write(ctx, event)
		return err
	})
}
