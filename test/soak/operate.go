package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

const (
	// Every unheardEvery, unheardAtOnce events are written to a topic without a queue.
	unheardEvery, unheardAtOnce = 100 * time.Millisecond, 4
	// unheardKeys is the number of keys of these events. No other topic has these keys.
	unheardKeys = 40
	// replayOf is the age of replayed events, and replayAtOnce their number per replay. A janitor
	// may have removed some of them.
	replayOf, replayAtOnce = 10 * time.Second, 400
	// retention is the janitor's retention.
	retention = 20 * time.Second
	operation = "an operator's work in a soak"
)

// operations are the work of operators during the faults: they write to a topic without a queue,
// replay events, and redrive or discard parked rows.
type operations struct {
	sys    *system.System
	outbox *producer.Outbox[pgx.Tx]
	inbox  *consumer.Inbox[pgx.Tx]

	mu       sync.Mutex
	unheard  int64 // events that were committed for the topic without a queue
	replayed int64
	redriven int64
	// discarded counts the messages that a handler refused and operators discarded.
	discarded int64
}

func newOperations(sys *system.System) (*operations, error) {
	outboxStore, err := postgres.New(sys.OutboxPool(), postgres.Config{})
	if err != nil {
		return nil, err
	}
	inboxStore, err := postgres.New(sys.InboxPool(), postgres.Config{})
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	o := &operations{sys: sys}
	if o.outbox, err = producer.New(outboxStore, producer.Config{Name: child.OutboxName, Logger: quiet}); err != nil {
		return nil, err
	}
	o.inbox, err = consumer.New(inboxStore, consumer.Config{Service: "operator", Logger: quiet})
	return o, err
}

// unheardTopic is the topic without a queue until the end of the faults.
func unheardTopic(sys *system.System) string { return sys.Topic + "_unheard" }

// unheardEvent is the payload of an event of unheardTopic.
type unheardEvent struct {
	N int64 `json:"n"` // ascends in each key
}

// start runs the operations until ctx ends. The caller waits for wg.
func (o *operations) start(ctx context.Context, wg *sync.WaitGroup, p pace) {
	wg.Go(func() {
		for sleep(ctx, unheardEvery) {
			o.write(ctx)
		}
	})
	wg.Go(func() {
		for turn := 0; sleep(ctx, p.operator); turn++ {
			o.replay(ctx)
			if turn%2 == 0 {
				o.redrive(ctx)
			} else {
				o.discard(ctx)
			}
		}
	})
}

// write commits the next events for the topic without a queue. While the outcome is unknown, it
// writes the same events again.
func (o *operations) write(ctx context.Context) {
	o.mu.Lock()
	first := o.unheard
	o.mu.Unlock()
	var events []producer.Event
	for i := range int64(unheardAtOnce) {
		n := first + i
		payload, _ := json.Marshal(unheardEvent{N: n / unheardKeys}) // numbers never fail
		events = append(events, producer.Event{
			Topic: unheardTopic(o.sys), Key: fmt.Sprintf("unheard-%d", n%unheardKeys),
			Source: fmt.Sprintf("unheard/%d", n), Version: 1, Payload: payload,
		})
	}
	if o.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := w.Write(ctx, events...)
		return err
	}) != nil {
		return // the database is away for the moment
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unheard += unheardAtOnce
}

// replay replays events that were delivered a while ago and are still retained.
func (o *operations) replay(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	to := time.Now().Add(-replayOf)
	report, _ := o.outbox.Replay(ctx, producer.Replay{
		Selection: outbox.Selection{Topic: o.sys.Topic, From: to.Add(-replayOf), To: to}, Limit: replayAtOnce,
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replayed += report.Replayed
}

// redrive makes all parked rows due at once.
func (o *operations) redrive(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	sent, _ := o.outbox.Redrive(ctx, outbox.Filter{}, operation)
	handled, _ := o.inbox.Redrive(ctx, inbox.Filter{}, operation)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.redriven += int64(len(sent) + len(handled))
}

// discard discards the messages that handlers have refused.
func (o *operations) discard(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	given, _ := o.inbox.Discard(ctx, inbox.Filter{}, operation)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discarded += int64(len(given))
}

// written returns the number of events without a queue.
func (o *operations) written() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unheard
}

// hear declares a queue for the topic, and reads messages until all events have arrived or ctx
// ends. It returns how many events are missing, and how many arrived after a later event of their
// key.
func (o *operations) hear(ctx context.Context) (lost, unordered int64, err error) {
	sub, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP: child.Topology(o.sys.Servers.RabbitMQ.URL(), "unheard"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	messages, err := sub.Subscribe(ctx, unheardTopic(o.sys))
	if err != nil {
		return 0, 0, err
	}
	heard := make(map[string]bool)
	next := make(map[string]int64)
	for int64(len(heard)) < o.written() {
		msg, open := <-messages
		if !open {
			break
		}
		var e unheardEvent
		if err := json.Unmarshal(msg.Payload, &e); err != nil {
			return 0, 0, err
		}
		key := msg.Metadata.Get(transport.MetaKey)
		if !heard[msg.UUID] && e.N != next[key] {
			unordered++
		}
		heard[msg.UUID], next[key] = true, max(next[key], e.N+1)
		msg.Ack()
	}
	return o.written() - int64(len(heard)), unordered, nil
}

// forget removes the queue of hear and its exchange.
func (o *operations) forget() error {
	return o.sys.RemoveTopic(unheardTopic(o.sys), "unheard")
}
