package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/schema"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// Relay sends the committed events of an outbox to a Watermill publisher, or to several publishers
// by topic (see [Downstream]), in the process that writes the events or in a process of its own.
// Any number of relays may run on one outbox: the relays share the shards fairly, and take over the
// shards of dead relays.
//
// With a [transport.Sender], as both transports of this library are, many messages are in flight at
// once, and every message has an outcome of its own. With a [transport.BatchSender] that is set up
// for batches, waiting events of a key travel together, and otherwise one at a time. Any other
// publisher gets batches of one topic; see Config.Publishers. An error of Publish may state its
// outcome by a method Outcome() transport.Outcome. Without the method, the end of a context leaves
// the outcome unknown, and any other error is a refusal.
//
// # Outcomes
//
// Confirmed removes an event. Invalid makes an event dead at once. Returned and Refused count an
// attempt, but only if the route works for other events; a route without successes is paused,
// probed, and counts no attempt. On a route that takes some events and refuses others, like a queue
// at its limit, attempts count so seldom that an event without a fault is delivered long before it
// is dead. Two bad events of different keys, alone on a route, look like a route that does not
// work: the events stay, and are reported after RouteGrace, until another event succeeds or an
// operator acts. A single failing key counts its attempts. After a counted attempt the event is
// parked with a backoff, and the later events of its key follow. Unavailable counts no attempt: the
// route is tried again, a little later each time.
//
// # Crashes
//
// A relay may be killed at any point: all its lasting state is in the database. The next owner of a
// shard sends the events that were in flight or unmarked again, in the order of each key, with
// [transport.WithRedelivered] in the context of the messages. A suspended relay that wakes up
// without its leases may still send a few events a second time, never ahead of an earlier event of
// their key. Such a relay cannot change the database.
//
// A Relay is safe for concurrent use, but runs once at a time.
type Relay struct {
	store     outbox.RelayStore
	publisher message.Publisher
	cfg       Config
	wakes     wakes

	mu     sync.Mutex
	loop   *relayLoop // nil when the relay does not run
	schema string     // fault of the tables, "" if none is known
}

// Report counts the events of a [Relay.RunOnce].
type Report struct {
	// Delivered events were confirmed and have left the outbox.
	Delivered int
	// Failed is the number of counted attempts.
	Failed int
	// Dead events have used up their attempts, or could never be sent.
	Dead int
	// Left events were read and not sent, because the transport or their route takes no event now.
	// More events may be behind them.
	Left int
}

// New returns a relay that sends the events of outbox to publisher, which may be nil if cfg has
// downstreams. New does no I/O. Commits through [producer.Outbox.Transact] wake the relay at once.
// The publisher belongs to the caller, who closes it after the relay has ended.
func New[TX any](outbox *producer.Outbox[TX], publisher message.Publisher, cfg Config) (*Relay, error) {
	if outbox == nil {
		return nil, errors.New("relay config: outbox is nil")
	}
	from := outbox.RelaySource()
	if cfg.Logger == nil {
		cfg.Logger = from.Logger
	}
	return newRelay(from.Store, wakes{from.Commits, from.Others, from.ID}, publisher, cfg)
}

// NewStandalone is [New] for a process that writes no events.
func NewStandalone(store outbox.RelayStore, publisher message.Publisher, cfg Config) (*Relay, error) {
	return newRelay(store, wakes{}, publisher, cfg)
}

// wakes signals the commits of an outbox in the relay's process. The store's signal tells of the
// same commits.
type wakes struct {
	signal *wakeup.Signal // nil without an outbox
	others *wakeup.Signal // of relays in other processes, which the signal leaves out; nil without an outbox
	id     string         // of the outbox
}

func (w wakes) subscribe(owns func(shards uint64) uint64) (*wakeup.Subscription, func()) {
	if w.signal == nil {
		return &wakeup.Subscription{}, func() {} // its channel is nil
	}
	return w.signal.Subscribe(owns)
}

func newRelay(store outbox.RelayStore, wakes wakes, publisher message.Publisher, cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if store == nil {
		err = errors.Join(err, errors.New("store is nil"))
	}
	if publisher == nil && len(cfg.Downstreams) == 0 {
		err = errors.Join(err, errors.New("publisher is nil"))
	}
	if !cfg.AllowLoss {
		err = errors.Join(err, refuseLossy(publisher, cfg.Downstreams))
	}
	if err != nil {
		return nil, fmt.Errorf("relay config: %w", err)
	}
	return &Relay{store: store, publisher: publisher, cfg: cfg, wakes: wakes}, nil
}

// Name returns the relay's name among the relays of its outbox.
func (r *Relay) Name() string { return r.cfg.Name }

// Run sends events until ctx ends. The relay then stops sending, waits for the outcomes of events
// in flight, at most Config.ShutdownTimeout, records the outcomes, gives its shards back, and
// returns nil. An unreachable database or transport is no error: Run goes on trying and reports the
// fault in the log and in [Relay.Health]. Run returns an error only if the relay runs already.
func (r *Relay) Run(ctx context.Context) error {
	_, err := r.run(ctx, false)
	return err
}

// RunOnce acquires shards, sends all due events, gives the shards back, and reports the numbers. It
// leaves events that are in shards of another relay, in their backoff, or refused by the transport
// for now. RunOnce stops at an error of the database and returns the error. If ctx ends, RunOnce
// returns the cause. If the relay runs already, RunOnce returns an error.
func (r *Relay) RunOnce(ctx context.Context) (Report, error) {
	return r.run(ctx, true)
}

func (r *Relay) run(ctx context.Context, once bool) (Report, error) {
	out := r.newOutput()
	loop := newRelayLoop(r.store, out.sender, r.cfg, once)
	defer loop.subscribe(r.wakes)()
	if err := r.begin(loop); err != nil {
		return Report{}, err
	}
	defer r.end()
	if !once {
		defer r.prepare(ctx)()
	}
	end := out.start(ctx)
	loop.run(ctx)
	end()
	r.await(ctx, out.batches)
	err := loop.err
	if once && err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if !once {
		err = nil
	}
	return Report(loop.core.Done()), err
}

// connector is a publisher that can connect before its first use.
type connector interface {
	Connect(ctx context.Context) error
}

// prepare connects the publishers and checks the tables, so that a relay without events to send
// learns of faults. The relay does not wait for the connections and the check; the returned
// function ends them.
func (r *Relay) prepare(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	for _, p := range append([]message.Publisher{r.publisher}, r.downstreams()...) {
		if c, ok := p.(connector); ok {
			tasks.Go(func() { _ = c.Connect(ctx) }) // the publisher's health reports the result
		}
	}
	tasks.Go(func() { schema.Await(ctx, r.store, func(err error) { r.checked(ctx, err) }) })
	return func() {
		cancel()
		tasks.Wait()
	}
}

func (r *Relay) downstreams() []message.Publisher {
	list := make([]message.Publisher, len(r.cfg.Downstreams))
	for i := range list {
		list[i] = r.cfg.Downstreams[i].Publisher
	}
	return list
}

// checked keeps and logs the result of a check of the tables.
func (r *Relay) checked(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schema = ""
	if err != nil {
		r.schema = err.Error()
		r.cfg.Logger.ErrorContext(ctx, "tables of the outbox are not as they should be, or cannot be reached", "relay", r.cfg.Name, "error", err)
	}
}

// output is the sender of a run, with the parts that a run must end.
type output struct {
	sender  transport.Sender
	router  *topicRouter   // nil with a single publisher
	batches []*batchSender // around publishers that are no Sender
}

func (r *Relay) newOutput() *output {
	out := &output{}
	if len(r.cfg.Downstreams) == 0 {
		out.sender = out.senderOf(r.publisher, &r.cfg)
		return out
	}
	downs := slices.Clone(r.cfg.Downstreams)
	if r.publisher != nil {
		downs = append(downs, Downstream{Publisher: r.publisher, MaxPerSecond: r.cfg.MaxPerSecond})
	}
	out.router = &topicRouter{}
	for _, d := range downs {
		if d.Window == 0 {
			d.Window = max(1, r.cfg.Window/len(downs))
		}
		out.router.add(d, out.senderOf(d.Publisher, &r.cfg))
	}
	out.sender = out.router
	return out
}

func (out *output) senderOf(publisher message.Publisher, cfg *Config) transport.Sender {
	sender, ok := publisher.(transport.Sender)
	if !ok {
		batches := newBatchSender(publisher, cfg.Publishers)
		out.batches = append(out.batches, batches)
		sender = batches
	}
	if cfg.Signer != nil {
		sender = cfg.Signer.Sender(sender)
	}
	return sender
}

// start starts the queues of the downstreams. The returned function ends them.
func (out *output) start(ctx context.Context) (end func()) {
	if out.router == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	out.router.start(ctx)
	return func() {
		cancel()
		out.router.tasks.Wait()
	}
}

// await waits for Publish calls, which take no context. A call that does not return is left behind
// and logged.
func (r *Relay) await(ctx context.Context, batches []*batchSender) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.ShutdownTimeout)
	defer cancel()
	for _, b := range batches {
		if !b.wait(ctx) {
			r.cfg.Logger.ErrorContext(ctx, "publisher has not returned from Publish", "relay", r.cfg.Name)
		}
	}
}

func (r *Relay) begin(loop *relayLoop) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loop != nil {
		return errors.New("relay runs already")
	}
	r.loop = loop
	return nil
}

func (r *Relay) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loop = nil
}
