package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
)

// The roles of a process. A service's role is its name, and its relay's role is relayPrefix and the
// name.
const (
	roleSystem  = "system" // all services, relays and the shop in one process
	roleShop    = "shop"   // places the orders
	relayPrefix = "relay-"
)

// leaseTTL is how long the shards of a killed relay stand still. The library's default is made for
// production, where processes are not killed every second.
const leaseTTL = 2 * time.Second

// system is the part of the example that runs in this process.
type system[TX any] struct {
	opts   options
	logger *slog.Logger
	dbs    map[string]database[TX]
	net    network

	mu         sync.Mutex
	handlers   []*consumer.Handler[TX]
	duplicates []*duplicator
}

// counts returns how many duplicates this process has injected and suppressed.
func (s *system[TX]) counts() (c counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.duplicates {
		c.Injected += d.injected.Load()
	}
	for _, h := range s.handlers {
		n := h.Counters()
		c.Suppressed += n.DuplicatesByWindow + n.DuplicatesByTable
	}
	return c
}

// run runs a role until ctx ends or the role's work is done.
func (s *system[TX]) run(ctx context.Context, role string) error {
	switch {
	case role == roleSystem:
		return s.runAll(ctx)
	case role == roleShop:
		return s.runShop(ctx)
	case strings.HasPrefix(role, relayPrefix):
		return s.runRelay(ctx, strings.TrimPrefix(role, relayPrefix))
	default:
		return s.runService(ctx, role, func() {})
	}
}

// runAll runs all roles in this process: the services first, and the relays and the shop once every
// handler listens.
func (s *system[TX]) runAll(ctx context.Context) error {
	var listening sync.WaitGroup
	listening.Add(len(services))
	parts := []func(context.Context) error{func(ctx context.Context) error {
		listening.Wait()
		if err := s.runShop(ctx); err != nil {
			return err
		}
		<-ctx.Done() // the end of the shop must not end the other parts
		return nil
	}}
	for _, service := range services {
		parts = append(parts,
			func(ctx context.Context) error {
				return s.runService(ctx, service, sync.OnceFunc(listening.Done))
			},
			func(ctx context.Context) error {
				listening.Wait()
				return s.runRelay(ctx, service)
			})
	}
	return together(ctx, parts...)
}

// runService runs the handlers of a service. It calls listening when all handlers receive messages,
// or when it fails.
func (s *system[TX]) runService(ctx context.Context, service string, listening func()) error {
	defer listening()
	db, ok := s.dbs[service]
	if !ok {
		return fmt.Errorf("there is no service %q", service)
	}
	outbox, err := producer.New(db.Store(), producer.Config{Name: service, Logger: s.logger})
	if err != nil {
		return err
	}
	inbox, err := consumer.New(db.Store(), consumer.Config{Service: service, Logger: s.logger}, consumer.WithOutbox(outbox))
	if err != nil {
		return err
	}
	log := watermill.NewSlogLogger(s.logger)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, log)
	if err != nil {
		return err
	}
	for _, sub := range subscriptions {
		if sub.service != service {
			continue
		}
		if err := s.addHandler(router, inbox, sub); err != nil {
			return fmt.Errorf("add handler %s: %w", sub.consumer(), err)
		}
	}
	heard := part(func(ctx context.Context) error { // runs when the router does
		listening()
		<-ctx.Done()
		return nil
	})
	group := boxpair.Group{Outbox: outbox, Inbox: inbox, Router: router, Others: []boxpair.Part{heard}, NoJanitor: true, Logger: s.logger}
	return group.Run(ctx) // relays run in processes of their own, and the audit reads all events
}

// part is a function as a part of a service.
type part func(ctx context.Context) error

// Run implements [boxpair.Part].
func (p part) Run(ctx context.Context) error { return p(ctx) }

func (s *system[TX]) addHandler(router *message.Router, inbox *consumer.Inbox[TX], sub subscription) error {
	subscriber, err := s.net.subscriber(sub)
	if err != nil {
		return err
	}
	ordered := consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}}
	handler, err := inbox.AddHandler(router, sub.topic, sub.topic, subscriber, saga[TX]{s.dbs[sub.service]}.handle(sub), ordered)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.handlers = append(s.handlers, handler)
	s.mu.Unlock()
	return nil
}

// runRelay publishes a service's committed events to the network. It needs only the service's
// database.
func (s *system[TX]) runRelay(ctx context.Context, service string) error {
	db, ok := s.dbs[service]
	if !ok {
		return fmt.Errorf("there is no service %q", service)
	}
	sender, err := s.net.publisher()
	if err != nil {
		return err
	}
	wire := &duplicator{Sender: sender, share: s.opts.Duplicates}
	s.mu.Lock()
	s.duplicates = append(s.duplicates, wire)
	s.mu.Unlock()
	outbox, err := producer.New(db.Store(), producer.Config{Name: service, Logger: s.logger})
	if err != nil {
		return err
	}
	relay, err := relay.New(outbox, wire, relay.Config{LeaseTTL: leaseTTL, Logger: s.logger})
	if err != nil {
		return err
	}
	return errors.Join(relay.Run(ctx), s.net.closePublisher(sender))
}

// together runs functions at once, ends all of them when one has ended, and returns their errors.
func together(ctx context.Context, fns ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(fns))
	var wg sync.WaitGroup
	for i, fn := range fns {
		wg.Go(func() {
			defer cancel()
			errs[i] = fn(ctx)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
