package modeltest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

const (
	consumers  = 6
	deliveries = 30 // to each
	checkTime  = 20 * time.Second
)

// answer is a consumer's answer to a delivery. After an uncertain answer the effect may come at any
// later time, or never.
type answer int

const (
	applied answer = iota
	duplicate
	uncertain
)

// request is a delivery of a message, or a reading of its effects.
type request struct {
	id   uuid.UUID
	look bool
}

// history records the actions of consumers of one database. It is safe for concurrent use.
type history struct {
	begun time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

// record calls do and records the request with its result.
func (h *history) record(client int, r request, do func() any) {
	call := time.Since(h.begun).Nanoseconds()
	output := do()
	ended := time.Since(h.begun).Nanoseconds()
	if output == uncertain {
		ended = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: r, Call: call, Output: output, Return: ended})
}

// onceModel is one dispatch ID: not applied, or applied. The observed effects, and the answers of
// every consumer, must follow from this state.
var onceModel = porcupine.Model{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		byID := make(map[uuid.UUID][]porcupine.Operation)
		for _, op := range ops {
			id := op.Input.(request).id
			byID[id] = append(byID[id], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byID {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return false },
	Step: func(state, input, output any) (bool, any) {
		done := state.(bool)
		if input.(request).look {
			return (output.(int) == 1) == done && output.(int) <= 1, done
		}
		switch output.(answer) {
		case applied:
			return !done, true
		case duplicate:
			return done, true
		default: // placed after the last look, it never happened
			return true, true
		}
	},
}

// linearizable tells whether some order of the actions applies each dispatch ID once.
func (h *history) linearizable(t *testing.T) bool {
	t.Helper()
	result := porcupine.CheckOperationsTimeout(onceModel, h.ops, checkTime)
	if result == porcupine.Unknown {
		t.Fatalf("%d operations were not checked within %v", len(h.ops), checkTime)
	}
	return result == porcupine.Ok
}

// shared is one database of several consumers.
type shared[TX any] struct {
	// open returns a store for one consumer, as of another process.
	open func() inbox.Store[TX]
	// effect is what a handler does, and effects how often that was committed.
	effect  func(ctx context.Context, tx TX, id uuid.UUID) error
	effects func(id uuid.UUID) (int, error)
}

// client is a consumer with an inbox of its own.
type client[TX any] struct {
	handler *consumer.Handler[TX]
	store   *faultyStore[TX]
	lost    bool // the answer of a commit was lost during this delivery
	random  *rand.Rand
}

func newClient[TX any](t *testing.T, db shared[TX], store inbox.Store[TX], seed uint64) *client[TX] {
	t.Helper()
	c := &client[TX]{random: rand.New(rand.NewPCG(seed, 0))}
	c.store = &faultyStore[TX]{Store: store, next: c.fault}
	inbox, err := consumer.New(inbox.Store[TX](c.store), consumer.Config{Service: "model", CacheSize: 3})
	if err != nil {
		t.Fatal(err)
	}
	c.handler, err = inbox.Handle("apply", func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
		return db.effect(ctx, w.DB(), w.Event().ID)
	}, consumer.HandlerConfig{Topic: "topic", Retry: consumer.RetryConfig{QuickAttempts: 1000, MaxAttempts: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// fault breaks some transactions. Every fault ends within a delivery, or with its context.
func (c *client[TX]) fault() fault {
	f := works
	switch c.random.IntN(12) {
	case 0:
		f = lostCommitted
	case 1:
		f = lostUndone
	case 2:
		f = conflicts
	}
	c.lost = c.lost || f == lostCommitted || f == lostUndone
	return f
}

// deliver handles a message and returns an answer. Some contexts have ended: then a delivery
// without immediate success is given back.
func (c *client[TX]) deliver(t *testing.T, id uuid.UUID) answer {
	e := transport.Event{ID: id, Topic: "topic", Payload: []byte("content")}
	e.Digest = transport.ContentDigest(&e)
	msg := e.Message()
	if c.random.IntN(4) == 0 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		msg.SetContext(ctx)
	}
	c.lost = false
	before := c.handler.Counters().Applied
	err := c.handler.Consume(msg)
	switch {
	case err != nil, c.lost:
		return uncertain
	case c.handler.Counters().Applied > before:
		return applied
	default:
		return duplicate
	}
}

// race makes consumers handle copies of a few messages at once, and returns their history. broken,
// if not nil, wraps the store of each consumer.
func race[TX any](t *testing.T, db shared[TX], broken func(inbox.Store[TX]) inbox.Store[TX]) *history {
	t.Helper()
	h := &history{begun: time.Now()}
	look := func(n int, id uuid.UUID) {
		h.record(n, request{id: id, look: true}, func() any {
			count, err := db.effects(id)
			if err != nil {
				t.Error(err)
			}
			return count
		})
	}
	var wg sync.WaitGroup
	for n := range consumers {
		store := db.open()
		if broken != nil {
			store = broken(store)
		}
		c := newClient(t, db, store, uint64(n))
		wg.Go(func() {
			for i := range deliveries {
				id := dispatch(i / 2) // every consumer twice, at about the same time as the others
				h.record(n, request{id: id}, func() any { return c.deliver(t, id) })
				if c.random.IntN(4) == 0 {
					look(n, id)
				}
			}
		})
	}
	wg.Wait()
	for i := range deliveries / 2 {
		look(consumers, dispatch(i))
	}
	return h
}

// counts formats how often each answer was given.
func (h *history) counts() string {
	n := make(map[any]int)
	for _, op := range h.ops {
		if !op.Input.(request).look {
			n[op.Output]++
		}
	}
	return fmt.Sprintf("%d applied, %d duplicates, %d uncertain", n[applied], n[duplicate], n[uncertain])
}

// applyTwice applies a duplicate once more.
type applyTwice[TX any] struct{ inbox.Store[TX] }

// Apply applies messages whatever was applied before.
func (s applyTwice[TX]) Apply(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx TX) error) (inbox.Verdict, error) {
	verdict, err := s.Store.Apply(ctx, c, fn)
	if verdict == inbox.Duplicate {
		c.ID = uuid.New() // as if nobody had claimed it
		return s.Store.Apply(ctx, c, fn)
	}
	return verdict, err
}

// applyNothing claims messages without their effects.
type applyNothing[TX any] struct{ inbox.Store[TX] }

// Apply claims a message.
func (s applyNothing[TX]) Apply(ctx context.Context, c inbox.Claim, _ func(ctx context.Context, tx TX) error) (inbox.Verdict, error) {
	return s.Store.Apply(ctx, c, func(context.Context, TX) error { return nil })
}

// answerTwice answers duplicates as applied.
type answerTwice[TX any] struct{ inbox.Store[TX] }

// Apply applies a message once and says so every time.
func (s answerTwice[TX]) Apply(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx TX) error) (inbox.Verdict, error) {
	verdict, err := s.Store.Apply(ctx, c, fn)
	if verdict == inbox.Duplicate {
		verdict = inbox.Applied
	}
	return verdict, err
}

func testConsumers[TX any](t *testing.T, open func(t *testing.T) shared[TX]) {
	t.Helper()
	t.Run("every dispatch is applied once", func(t *testing.T) {
		t.Parallel()
		h := race(t, open(t), nil)
		t.Log(h.counts())
		if !h.linearizable(t) {
			t.Error("no order explains what the consumers answered")
		}
	})
	for name, broken := range map[string]func(inbox.Store[TX]) inbox.Store[TX]{
		"applies twice":                 func(s inbox.Store[TX]) inbox.Store[TX] { return applyTwice[TX]{s} },
		"answers twice that it applied": func(s inbox.Store[TX]) inbox.Store[TX] { return answerTwice[TX]{s} },
		"claims what it does not apply": func(s inbox.Store[TX]) inbox.Store[TX] { return applyNothing[TX]{s} },
	} {
		t.Run("a store is found that "+name, func(t *testing.T) {
			t.Parallel()
			if h := race(t, open(t), broken); h.linearizable(t) {
				t.Errorf("nothing was found: %s", h.counts())
			}
		})
	}
}
