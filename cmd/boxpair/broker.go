package main

import (
	"context"
	"fmt"

	"github.com/boxpair/boxpair/internal/management"
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
// exchange, or the queue of the topic's name.
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
	known := make(map[string][]queueState)
	for i := range all {
		for k := range all[i].Events {
			topic := all[i].Events[k].Topic
			if _, read := known[topic]; !read {
				if known[topic], err = queuesOf(ctx, api, topic); err != nil {
					return say(err)
				}
			}
			all[i].Queues = append(all[i].Queues, known[topic]...)
			for _, q := range known[topic] {
				if q.Ready > 0 && q.Consumers == 0 {
					all[i].Done = false
					all[i].Heal = append(all[i].Heal, "# nobody consumes queue "+plain(q.Queue)+": start its consumer")
				}
			}
		}
	}
	return nil
}

func queuesOf(ctx context.Context, api *management.API, topic string) ([]queueState, error) {
	var bindings []struct {
		Destination     string `json:"destination"`
		DestinationType string `json:"destination_type"`
	}
	if _, err := api.Get(ctx, &bindings, "exchanges", api.VHost, topic, "bindings", "source"); err != nil {
		return nil, err
	}
	names := []string{topic}
	for _, b := range bindings {
		if b.DestinationType == "queue" {
			names = append(names, b.Destination)
		}
	}
	list := []queueState{}
	for _, name := range names {
		q := queueState{Queue: name, Topic: topic}
		found, err := api.Get(ctx, &q, "queues", api.VHost, name)
		if err != nil {
			return nil, err
		}
		if found {
			list = append(list, q)
		}
	}
	return list, nil
}
