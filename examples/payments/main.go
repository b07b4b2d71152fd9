// Command payments charges every order once, at a provider over HTTP, with a service that is killed
// in the middle of its calls again and again.
//
// The parent process is the provider, which remembers idempotency keys, and the supervisor. The
// service is a child process. It handles order.placed from its outbox, records the charge, calls
// the provider outside any transaction, and writes the receipt and order.paid in one transaction.
// The provider kills the service with SIGKILL in the middle of a request: before the charge, or
// after the charge and before the answer. A line of JSON at the end reports the state of the
// provider and the database:
//
//	go run ./examples/payments [-orders 40] [-kills 6]
//
// The example runs on a SQLite file, or with DATABASE_URL on PostgreSQL, in a schema of its own.
// The exit status is 1 unless every order was charged, paid and shipped once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// The environment of the child process.
const (
	envChild    = "PAYMENTS_CHILD" // the provider's URL
	envDatabase = "DATABASE_URL"
	envFile     = "PAYMENTS_FILE" // of SQLite
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if provider := os.Getenv(envChild); provider != "" {
		if err := serve(ctx, provider); err != nil {
			log.Fatal(err)
		}
		return
	}
	orders := flag.Int("orders", 40, "how many orders are placed")
	kills := flag.Int("kills", 6, "how often the service is killed in the middle of a request, at most once for every four orders")
	flag.Parse()
	report, err := run(ctx, []string{os.Args[0]}, *orders, *kills)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err == nil && !report.OK {
		err = errors.New("not every order was charged, paid and shipped once")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// Report is the output of the example.
type Report struct {
	Orders       int     `json:"orders"`
	Charged      int     `json:"charged"`       // orders that the provider has charged
	ChargedTwice int     `json:"charged_twice"` // orders that the provider has charged more than once
	Paid         int     `json:"paid"`          // orders with the provider's receipt in the database
	Shipped      int     `json:"shipped"`       // orders whose order.paid was handled
	ShippedTwice int     `json:"shipped_twice"`
	Requests     int     `json:"requests"` // to the provider
	Repeated     int     `json:"repeated"` // of them, under a key that it had charged already
	Kills        int     `json:"kills"`
	Seconds      float64 `json:"seconds"`
	OK           bool    `json:"ok"`
}

// run places orders. command, with the environment of a child, handles them.
func run(ctx context.Context, command []string, orders, kills int) (*Report, error) {
	if orders < 1 || kills < 0 {
		return nil, fmt.Errorf("orders: %d, kills: %d: at least one order is needed, and kills must not be negative", orders, kills)
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	env := []string{envDatabase + "=" + os.Getenv(envDatabase)}
	if os.Getenv(envDatabase) == "" {
		dir, err := os.MkdirTemp("", "boxpair-payments-*")
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		env = append(env, envFile+"="+filepath.Join(dir, "shop.db"))
	}
	shop, err := open(ctx, env)
	if err != nil {
		return nil, err
	}
	defer shop.close()
	if err := shop.prepare(ctx); err != nil {
		return nil, err
	}
	for n := range orders {
		if err := shop.place(ctx, fmt.Sprintf("order-%d", n)); err != nil {
			return nil, err
		}
	}
	p, err := newProvider(min(kills, orders/4))
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := supervise(ctx, p, shop, append(env, envChild+"="+p.url), command, orders); err != nil {
		return nil, err
	}
	r := &Report{Orders: orders, Seconds: time.Since(begun).Round(time.Millisecond).Seconds()}
	p.report(r)
	if err := shop.report(ctx, r); err != nil {
		return nil, err
	}
	r.OK = r.Charged == orders && r.Paid == orders && r.Shipped == orders && r.ChargedTwice+r.ShippedTwice == 0
	return r, nil
}
