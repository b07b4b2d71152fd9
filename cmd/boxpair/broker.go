package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/boxpair/boxpair/internal/management"
	"github.com/boxpair/boxpair/internal/topics"
)

// queueState is a queue that takes a topic, in RabbitMQ.
type queueState struct {
	Queue     string `json:"queue"`
	Topic     string `json:"topic"`
	Ready     int64  `json:"messages_ready"`
	Unacked   int64  `json:"messages_unacknowledged"`
	Consumers int64  `json:"consumers"`
}

// String returns the state in words.
func (q *queueState) String() string {
	return fmt.Sprintf("queue %s has %d messages that wait, %d that are being handled, and %d consumers", q.Queue, q.Ready, q.Unacked, q.Consumers)
}

// queues adds to the sights what RabbitMQ has for their topics: the queues bound to the topic's
// exchange, the queue of the topic's name, or the queues that the topic as a routing key reaches.
func (x *explainer) queues(ctx context.Context, all []sight) error {
	if x.broker.URL == "" {
		return nil
	}
	say := func(err error) error { // the databases have answered
		for i := range all {
			all[i].Broker = err.Error()
		}
		return nil
	}
	api, err := management.New(x.broker.URL, x.broker.VHost, x.broker.Client)
	if err != nil {
		return fmt.Errorf("--management: %w", err)
	}
	routes, err := x.routes(ctx)
	if err != nil {
		return err
	}
	known := make(map[string][]queueState)
	for i := range all {
		one := &all[i]
		for k := range one.Events {
			topic := one.Events[k].Topic
			if _, read := known[topic]; !read {
				if known[topic], err = queuesOf(ctx, api, topic, routes[topic]); err != nil {
					return say(err)
				}
			}
			for _, q := range known[topic] {
				if slices.ContainsFunc(one.Queues, func(other queueState) bool { return other.Queue == q.Queue }) {
					continue
				}
				one.Queues = append(one.Queues, q)
				if q.Ready > 0 && q.Consumers == 0 {
					one.Done = false
					one.Heal = append(one.Heal, "# nobody consumes queue "+plain(q.Queue)+": start its consumer")
				}
			}
		}
		if len(one.Queues) == 0 && len(one.Events) > 0 {
			if err := x.unbound(ctx, one); err != nil {
				return say(err)
			}
		}
	}
	return nil
}

// unbound adds the queues that are named after the topic of an event that no queue takes. If there is one,
// the command that heals the topic names its consumer.
func (x *explainer) unbound(ctx context.Context, one *sight) (err error) {
	topic := one.Events[0].Topic
	if one.Unbound, err = queuesAfter(ctx, x.broker, x.broker.VHost, topic+"_"); err != nil || len(one.Unbound) != 1 {
		return err
	}
	for i, command := range one.Heal {
		if strings.HasPrefix(command, "boxpair declare ") {
			name := strings.TrimPrefix(one.Unbound[0].Queue, topic+"_")
			one.Heal[i] = strings.Replace(command, "--consumer …", "--consumer "+quoted(name), 1)
		}
	}
	return nil
}

// routes returns the routes of each topic that the relays have reported.
func (x *explainer) routes(ctx context.Context) (map[string][]string, error) {
	routes := make(map[string][]string)
	err := x.each(ctx, true, func(s *operators) error {
		if s.isInbox {
			return nil
		}
		relays, err := s.outbox.ListRelays(ctx)
		for i := range relays {
			for _, t := range relays[i].Topics {
				routes[t.Topic] = append(routes[t.Topic], t.Route)
			}
		}
		return err
	})
	return routes, err
}

// bindings follows a topic from exchange to queue.
type bindings struct {
	api    *management.API
	topic  string
	queues []string        // in the order in which they are reached
	seen   map[string]bool // names of queues, and of exchanges behind a slash
}

type exchange struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// follow adds the queues that get the topic from an exchange, and tells whether there is such an exchange.
func (b *bindings) follow(ctx context.Context, from exchange) (bool, error) {
	if b.seen["/"+from.Name] {
		return true, nil
	}
	b.seen["/"+from.Name] = true
	var list []struct {
		Destination     string `json:"destination"`
		DestinationType string `json:"destination_type"`
		Key             string `json:"routing_key"`
	}
	found, err := b.api.Get(ctx, &list, "exchanges", b.api.VHost, from.Name, "bindings", "source")
	if err != nil {
		return found, err
	}
	for _, binding := range list {
		if !b.passes(from.Type, binding.Key) {
			continue
		}
		if binding.DestinationType == "queue" {
			b.add(binding.Destination)
			continue
		}
		var next exchange
		if there, err := b.api.Get(ctx, &next, "exchanges", b.api.VHost, binding.Destination); err != nil {
			return found, err
		} else if there {
			next.Name = binding.Destination
			if _, err := b.follow(ctx, next); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

func (b *bindings) add(queue string) {
	if !b.seen[queue] {
		b.seen[queue], b.queues = true, append(b.queues, queue)
	}
}

// passes tells whether an exchange passes the topic on by a binding key: the topic's, or one of a shard of a
// partitioned topic. Exchanges other than topic and direct exchanges pass on all messages.
func (b *bindings) passes(kind, key string) bool {
	if shard, is := strings.CutPrefix(key, b.topic+"."); is {
		if _, err := strconv.Atoi(shard); err == nil {
			return true
		}
	}
	switch kind {
	case "topic":
		return topics.Match(key, b.topic)
	case "direct":
		return key == b.topic
	}
	return true
}

// queuesOf returns the queues that get a topic: of the topic's exchange and the queue of the topic's name or,
// if there is neither, of any exchange that the topic's routes may name.
func queuesOf(ctx context.Context, api *management.API, topic string, routes []string) ([]queueState, error) {
	b := &bindings{api: api, topic: topic, seen: make(map[string]bool)}
	own, err := b.follow(ctx, exchange{Name: topic})
	if err != nil {
		return nil, err
	}
	b.add(topic)
	list, err := b.states(ctx)
	if err != nil || own || len(list) > 0 {
		return list, err
	}
	var all []exchange
	if _, err := api.Get(ctx, &all, "exchanges", api.VHost); err != nil {
		return nil, err
	}
	for _, e := range all {
		named := len(routes) == 0 || slices.ContainsFunc(routes, func(route string) bool { return strings.Contains(route, " "+e.Name+"/") })
		if e.Name == "" || !named || e.Type != "topic" && e.Type != "direct" {
			continue
		}
		if _, err := b.follow(ctx, e); err != nil {
			return nil, err
		}
	}
	return b.states(ctx)
}

// states reads the state of the queues.
func (b *bindings) states(ctx context.Context) ([]queueState, error) {
	list := []queueState{}
	for _, name := range b.queues {
		q := queueState{Queue: name, Topic: b.topic}
		found, err := b.api.Get(ctx, &q, "queues", b.api.VHost, name)
		if err != nil {
			return nil, err
		}
		if found {
			list = append(list, q)
		}
	}
	return list, nil
}
