package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

// simProcess is one process of the service: an inbox of its own, with its memory.
type simProcess struct {
	sim      *simulation
	name     string
	inbox    *consumer.Inbox[*simTx]
	handlers map[string]*consumer.Handler[*simTx]
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	held     []*simDelivery
	stopped  time.Time // does nothing before, and does not know
	leaving  bool      // was told to end
	dead     bool      // guarded by sim.mu
}

// simCall is a step that waits for its turn.
type simCall struct {
	name     string
	fallible bool
	ready    func() bool // nil: at once
	until    time.Time   // when it gives up, unless zero
	do       func()
	tx       *simTx // to be committed

	proc *simProcess
	ctx  context.Context
	done chan error
}

// call waits until it is the turn of c, and returns what became of it.
func (p *simProcess) call(ctx context.Context, c *simCall) error {
	c.proc, c.ctx, c.done = p, ctx, make(chan error, 1)
	s := p.sim
	s.mu.Lock()
	if p.dead {
		s.mu.Unlock()
		return errCrashed
	}
	s.calls = append(s.calls, c)
	s.mu.Unlock()
	return <-c.done
}

func (s *simulation) startProcess() {
	s.named++
	p := &simProcess{sim: s, name: fmt.Sprintf("p%02d", s.named), handlers: make(map[string]*consumer.Handler[*simTx])}
	p.ctx, p.cancel = context.WithCancel(s.t.Context())
	var err error
	if p.inbox, err = consumer.New(&simStore{&s.db.control, p, s.db}, s.cfg); err != nil {
		s.t.Fatal(err)
	}
	seed := s.rnd.Uint64()
	p.inbox.SetRandom(func(most time.Duration) time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		seed = seed*6364136223846793005 + 1442695040888963407
		return time.Duration(seed>>11) % (most + 1)
	})
	for _, q := range s.queues {
		cfg := s.handler
		cfg.Order.ByKey = s.ordered[q.name]
		if s.stores[q.name] {
			cfg.StoreFirst, cfg.Optimistic, cfg.Group = true, false, consumer.GroupConfig{}
		}
		name := s.cfg.Service + "/" + q.name
		p.handlers[q.name], err = p.inbox.Handle(q.name, func(ctx context.Context, w *consumer.Work[*simTx], _ *message.Message) error {
			return p.handle(ctx, name, w)
		}, cfg)
		if err != nil {
			s.t.Fatal(err)
		}
	}
	s.processes = append(s.processes, p)
	s.tracef("%s starts", p.name)
	p.wg.Go(func() { _ = p.inbox.Run(p.ctx) })
}

// simKind is how a handler takes a message.
type simKind uint8

const (
	simGood simKind = iota
	simFails
	simPanics
	simExits
	simSwallows
	simHangs
	simLater
	simRejects
	simKills
	simKinds
)

// simPlan says what a message does to its handlers at first: the first times runs of each consumer.
// It counts, by consumer, those runs and how often a process has returned the message to its queue.
type simPlan struct {
	kind     simKind
	times    int
	runs     map[string]int
	returned map[string]int
}

const simAlways = 1 << 20

func (s *simulation) newPlan() *simPlan {
	plan := &simPlan{runs: make(map[string]int), returned: make(map[string]int)}
	if s.wild.bad && s.chance(5) {
		plan.kind = simFails + simKind(s.rnd.IntN(int(simKills-simFails)))
		plan.times = 1 + s.rnd.IntN(4)
		if s.chance(4) {
			plan.times = simAlways
		}
	}
	if s.wild.killers && s.chance(20) {
		plan.kind, plan.times = simKills, 1+s.rnd.IntN(2)
		if s.chance(2) {
			plan.times = simAlways
		}
	}
	return plan
}

// handle is the handler of every consumer.
func (p *simProcess) handle(ctx context.Context, name string, w *consumer.Work[*simTx]) error {
	s, e, tx := p.sim, w.Event(), w.DB()
	kind := simGood
	err := p.call(ctx, &simCall{name: fmt.Sprintf("handle %s by %s", short(e.ID), name), do: func() {
		plan := s.plans[e.ID]
		if plan.runs[name]++; plan.runs[name] <= plan.times {
			kind = plan.kind
		}
		s.starts++
		if kind == simKills {
			s.crash(p)
			s.db.stood(p, e.ID)
		}
	}})
	if err != nil {
		return err
	}
	tx.spoiled = tx.spoiled || kind != simGood
	err = p.call(ctx, &simCall{name: fmt.Sprintf("effects of %s by %s", short(e.ID), name), fallible: true, do: func() {
		number := 1 + slices.IndexFunc(s.db.consumers, func(c *simConsumer) bool { return c.name == name })
		effect := simEffect{simContent{claimKey{number, e.ID}, e.Digest}, e.Key}
		tx.writes = append(tx.writes, func() { s.db.effects = append(s.db.effects, effect) })
	}})
	if err != nil {
		tx.broken = true
		return err
	}
	return kind.misbehave(ctx, tx)
}

func (k simKind) misbehave(ctx context.Context, tx *simTx) error {
	switch k {
	case simFails:
		return errors.New("bad message")
	case simPanics:
		panic("bad message")
	case simExits:
		runtime.Goexit()
	case simSwallows:
		tx.broken = true
	case simHangs:
		<-ctx.Done()
		return ctx.Err()
	case simLater:
		return consumer.RetryAfter(500*time.Millisecond, errors.New("not yet"))
	case simRejects:
		return consumer.Reject(errors.New("never"))
	}
	return nil
}

// crash ends a process like kill -9. What it had sent may still be done.
func (s *simulation) crash(p *simProcess) {
	s.tracef("%s dies", p.name)
	s.crashes++
	s.mu.Lock()
	p.dead = true
	var pending []*simCall
	s.calls = slices.DeleteFunc(s.calls, func(c *simCall) bool {
		if c.proc == p {
			pending = append(pending, c)
		}
		return c.proc == p
	})
	s.mu.Unlock()
	s.sortCalls(pending)
	for _, c := range pending {
		switch {
		case !c.fallible || !s.chance(2):
		case c.tx != nil:
			c.tx.doubt = true
		case c.ready == nil:
			c.do()
		}
		c.done <- errCrashed
	}
	p.cancel()
	p.disconnect()
	s.processes = slices.DeleteFunc(s.processes, func(o *simProcess) bool { return o == p })
	s.gone = append(s.gone, p)
}

// simBlame is how many errors of the database may count as an attempt.
const simBlame = 5

// counted looks at why an attempt was counted.
func (s *simulation) counted(why string, id uuid.UUID) {
	switch {
	case strings.Contains(why, inbox.ErrCommitUnknown.Error()):
		s.fail("an unknown commit of %s was counted as a failure", short(id))
	case s.wild.starve, s.wild.stop: // then a handler that fails may be late as well
	case strings.Contains(why, errOutage.Error()), strings.Contains(why, errConflict.Error()):
		if s.troubles[id] -= simBlame; s.troubles[id] < 0 {
			s.fail("an outage was counted as a failure of %s", short(id))
		}
	}
}

// troubled notes an error of the database.
func (s *simulation) troubled(id uuid.UUID, err error) {
	if class := (*fakeStore)(nil).Classify(err); err != nil && class != inbox.HandlerError {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.troubles[id]++
	}
}
