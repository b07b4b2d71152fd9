package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"
)

// provider charges orders, each idempotency key once, as payment providers do. Now and then it
// kills the calling process.
type provider struct {
	url    string
	server *http.Server
	wg     sync.WaitGroup

	mu       sync.Mutex
	charged  map[string]string // order by key
	orders   map[string]int    // number of charges by order
	requests int
	repeated int
	kills    int // done
	most     int
	child    *os.Process
}

func newProvider(kills int) (*provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &provider{
		url: "http://" + l.Addr().String(), charged: make(map[string]string), orders: make(map[string]int), most: kills,
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: time.Second}
	p.wg.Go(func() { _ = p.server.Serve(l) })
	return p, nil
}

func (p *provider) close() {
	_ = p.server.Close()
	p.wg.Wait()
}

// ServeHTTP charges the order in the body under the request's Idempotency-Key.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c Charge
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&c); err != nil {
		http.Error(w, "want an order", http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	if p.requests%8 == 3 && p.kill() {
		return // not charged
	}
	switch order, known := p.charged[key]; {
	case known && order != c.Order:
		http.Error(w, "the key was used for another order", http.StatusUnprocessableEntity)
		return
	case known:
		p.repeated++
	default:
		p.charged[key] = c.Order
		p.orders[c.Order]++
	}
	if p.requests%8 == 6 && p.kill() {
		return // charged, without an answer
	}
	_ = json.NewEncoder(w).Encode(Receipt{Number: "receipt-" + key})
}

// kill ends the service with SIGKILL. The caller holds mu.
func (p *provider) kill() bool {
	if p.kills >= p.most || p.child == nil {
		return false
	}
	p.kills++
	_ = p.child.Kill()
	p.child = nil
	return true
}

func (p *provider) watch(child *os.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child = child
}

func (p *provider) report(r *Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Charged, r.Requests, r.Repeated, r.Kills = len(p.orders), p.requests, p.repeated, p.kills
	for _, times := range p.orders {
		if times > 1 {
			r.ChargedTwice++
		}
	}
}

// supervise runs the service until all orders are shipped, and restarts it after each kill.
func supervise(ctx context.Context, p *provider, shop shop, env, command []string, orders int) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		defer stop()
		done <- waitShipped(ctx, shop, orders)
	}()
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Env = append(os.Environ(), env...)
		cmd.Stderr = os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		if err := cmd.Start(); err != nil {
			stop()
			return errors.Join(fmt.Errorf("start the service: %w", err), <-done)
		}
		p.watch(cmd.Process)
		_ = cmd.Wait() // killed, or told to end
		p.watch(nil)
	}
	return <-done
}

// waitShipped waits until the given number of orders is shipped.
func waitShipped(ctx context.Context, shop shop, orders int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var r Report
		if err := shop.report(ctx, &r); err == nil && r.Shipped >= orders {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d orders are shipped: %w", r.Shipped, orders, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
