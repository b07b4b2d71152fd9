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

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
)

// The roles of a process. A service's role is its name, that of its relay has
// the prefix.
const (
	roleSystem  = "system" // everything in one process
	roleShop    = "shop"   // places the orders
	relayPrefix = "relay-"
)

// A relay that was killed is missed for as long as its lease lasts. The default
// is made for production, where nothing is killed every second.
const leaseTTL = 2 * time.Second

// system is the part of the whole that this process runs.
type system[TX any] struct {
	opts   options
	logger *slog.Logger
	dbs    map[string]database[TX]
	net    network

	mu         sync.Mutex
	handlers   []*consumer.Handler[TX]
	duplicates []*duplicator
}

// counts tells how many duplicates this process has injected and suppressed.
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

// run does what role says until ctx ends or its work is done.
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

// runAll runs everything in this process: the services first, and the relays and
// the shop when every handler listens.
func (s *system[TX]) runAll(ctx context.Context) error {
	var listening sync.WaitGroup
	listening.Add(len(services))
	parts := []func(context.Context) error{func(ctx context.Context) error {
		listening.Wait()
		if err := s.runShop(ctx); err != nil {
			return err
		}
		<-ctx.Done() // a shop that is done does not end the rest
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

// runService runs the handlers of a service. It calls listening when all of them
// receive messages, or when it fails.
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
	inbox, err := consumer.New(db.Store(), outbox, consumer.Config{Service: service, Logger: s.logger})
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
	return together(ctx, router.Run, inbox.Run, outbox.Run, func(ctx context.Context) error {
		select {
		case <-router.Running():
			listening()
		case <-ctx.Done():
		}
		<-ctx.Done()
		return nil
	})
}

func (s *system[TX]) addHandler(router *message.Router, inbox *consumer.Inbox[TX], sub subscription) error {
	handler, err := inbox.Handle(sub.topic, saga[TX]{s.dbs[sub.service]}.handle(sub), consumer.HandlerConfig{Ordered: true})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.handlers = append(s.handlers, handler)
	s.mu.Unlock()
	subscriber, err := s.net.subscriber(sub)
	if err != nil {
		return err
	}
	router.AddConsumerHandler(sub.consumer(), sub.topic, subscriber, handler.Consume)
	return nil
}

// runRelay moves what a service has committed to the network. It needs the
// service's database and nothing else of it.
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

// together runs functions at the same time, ends all when one has ended, and returns
// what went wrong.
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
