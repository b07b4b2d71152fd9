package main

import (
	"context"
	"fmt"
)

// findings is the result of an audit of the databases. The counts from NotFinal on must be zero.
type findings struct {
	Events  int64 // committed events
	Due     int64 // due applications: an event counts once for each consumer of its topic
	Applied int64 // different dispatch IDs with an effect, over all consumers
	Parked  int64 // dead letters, kept for an operator

	NotFinal   int64 // undecided orders of the run
	Stock      int64 // missing or surplus pieces
	Money      int64 // missing or surplus money
	Lost       int64 // neither applied nor parked
	Phantoms   int64 // applied, but never committed
	Repeated   int64 // effects beyond the first of a dispatch ID
	Violations int64 // effects of a customer after a later effect
}

// topicsOf is the topic that each service emits.
var topicsOf = map[string]string{serviceOrders: topicOrder, serviceInventory: topicStock, servicePayment: topicPayment}

// outstanding counts the unfinished work: due applications without a claim, and parked messages.
func outstanding[TX any](ctx context.Context, dbs map[string]database[TX]) (left int64, err error) {
	add := func(sign int64, db database[TX], query string) {
		n, e := number(ctx, db, query)
		if left += sign * n; err == nil {
			err = e
		}
	}
	for _, sub := range subscriptions {
		db := dbs[sub.service]
		add(-1, db, fmt.Sprintf(`SELECT count(*) FROM %s WHERE consumer = (SELECT id FROM %s WHERE name = '%s')`,
			db.Table("inbox"), db.Table("inbox_consumers"), sub.consumer()))
		for service, topic := range topicsOf {
			if topic == sub.topic {
				add(1, dbs[service], `SELECT count(*) FROM `+dbs[service].Table("outbox_events"))
			}
		}
	}
	for _, db := range dbs {
		add(1, db, `SELECT count(*) FROM `+db.Table("inbox_parked")+` WHERE state IN ('retrying', 'following')`)
		add(1, db, `SELECT count(*) FROM `+db.Table("outbox_parked")+` WHERE state IN ('retrying', 'following')`)
		add(1, db, `SELECT count(*) FROM `+db.Table("outbox_queue"))
	}
	return left, err
}

// audit compares the committed events with the applied ones, over all runs in these databases.
func audit[TX any](ctx context.Context, dbs map[string]database[TX], run int64) (report, error) {
	var r report
	for service, topic := range topicsOf {
		committed, err := readIDs(ctx, dbs[service], `SELECT {id} FROM `+dbs[service].Table("outbox_events"))
		if err != nil {
			return r, err
		}
		r.Events += int64(len(committed))
		for _, sub := range subscriptions {
			if sub.topic != topic {
				continue
			}
			if err := auditConsumer(ctx, dbs[sub.service], sub, committed, &r.findings); err != nil {
				return r, fmt.Errorf("%s: %w", sub.consumer(), err)
			}
		}
	}
	return r, auditBooks(ctx, dbs, run, &r.findings)
}

// auditConsumer checks the effects of one consumer against the events committed for it.
func auditConsumer[TX any](ctx context.Context, db database[TX], sub subscription, committed map[string]bool, f *findings) error {
	parked, err := readIDs(ctx, db, fmt.Sprintf(`SELECT {id} FROM %s WHERE state = 'dead' AND consumer = (SELECT id FROM %s WHERE name = '%s')`,
		db.Table("inbox_parked"), db.Table("inbox_consumers"), sub.consumer()))
	if err != nil {
		return err
	}
	applied := make(map[string]bool, len(committed))
	latest := make(map[string]int64) // by customer
	query := fmt.Sprintf(`SELECT dispatch_id, customer, seq FROM effects WHERE consumer = '%s' ORDER BY id`, sub.consumer())
	err = db.Query(ctx, query, func(scan func(...any) error) error {
		var id, customer string
		var seq int64
		if err := scan(&id, &customer, &seq); err != nil {
			return err
		}
		switch {
		case applied[id]:
			f.Repeated++
			return nil
		case !committed[id]:
			f.Phantoms++
		}
		applied[id] = true
		if seq <= latest[customer] {
			f.Violations++
		}
		latest[customer] = max(seq, latest[customer])
		return nil
	})
	if err != nil {
		return err
	}
	f.Due += int64(len(committed))
	f.Applied += int64(len(applied))
	f.Parked += int64(len(parked))
	for id := range committed {
		if !applied[id] && !parked[id] {
			f.Lost++
		}
	}
	return nil
}

// auditBooks checks that every order of the run is decided, and that stock and money are conserved:
// given amounts are left, reserved or spent.
func auditBooks[TX any](ctx context.Context, dbs map[string]database[TX], run int64, f *findings) (err error) {
	sum := func(service, query string) int64 {
		n, e := number(ctx, dbs[service], query)
		if err == nil && e != nil {
			err = fmt.Errorf("books of %s: %w", service, e)
		}
		return n
	}
	f.NotFinal = sum(serviceOrders, fmt.Sprintf(`SELECT (SELECT orders FROM runs WHERE id = %d) - count(*) FROM orders WHERE run = %d AND status IN ('confirmed', 'cancelled')`, run, run))
	sold := sum(serviceOrders, `SELECT coalesce(sum(quantity), 0) FROM orders WHERE status = 'confirmed'`)
	spent := sum(serviceOrders, `SELECT coalesce(sum(amount), 0) FROM orders WHERE status = 'confirmed'`)

	f.Stock = sum(serviceInventory, `SELECT coalesce(sum(quantity), 0) FROM supplies`) -
		sum(serviceInventory, `SELECT coalesce(sum(quantity), 0) FROM stock`) - sold
	f.Money = sum(servicePayment, `SELECT coalesce(sum(amount), 0) FROM deposits`) -
		sum(servicePayment, `SELECT coalesce(sum(balance), 0) FROM accounts`) - spent
	return err
}

// readIDs reads dispatch IDs as lower-case text; {id} in the query stands for their column.
func readIDs[TX any](ctx context.Context, db database[TX], query string) (map[string]bool, error) {
	ids := make(map[string]bool)
	err := db.Query(ctx, db.IDs(query), func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids[id] = true
		return err
	})
	return ids, err
}
