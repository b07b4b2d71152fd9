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

// Relay moves committed events from an outbox to a Watermill publisher, in the process that writes
// them or alone in another. Any number of relays may run on one outbox: they share its shards
// fairly, and take over from relays that die.
//
// If the publisher is a [transport.Sender], as both transports of this library are, many messages
// are in flight at once and each has its own outcome. If it is a [transport.BatchSender] that is
// set up for batches, waiting events of a key travel together; else one at a time. Any other
// publisher gets batches of one topic; see Config.Publishers. An error of its Publish may have a
// method Outcome() transport.Outcome to state the outcome; otherwise it counts as a refusal.
//
// # Outcomes
//
// Confirmed removes an event. Invalid makes it dead at once. Returned and Refused count an attempt,
// but only if the route works for other events; a route on which nothing succeeds is paused,
// probed, and counts nothing. On a route that refuses some events and takes others, as a queue at
// its limit does, attempts count so seldom that an event without a fault is delivered long before
// it is dead. Two bad events of different keys, alone on a route, look like a route that does not
// work: they stay, and are reported after RouteGrace, until another event succeeds or an operator
// acts. One key alone counts its attempts. After a counted attempt the event is parked with a
// backoff, and the later events of its key follow it. Unavailable counts nothing: the route is
// tried again, a little later each time.
//
// # Crashes
//
// A relay may be killed at any point: all its lasting state is in the database. The next owner of
// its shards sends the events again that were in flight or not yet marked, first of each key first,
// with [transport.WithRedelivered] in the context of the messages. A relay that was merely
// suspended, and wakes up with its leases gone, can still send a few events a second time, never
// ahead of an earlier event of their key; it cannot change the database.
//
// A Relay is safe for concurrent use, but runs once at a time. It publishes to one publisher, or to
// several by topic; see [Downstream].
type Relay struct {
	store     outbox.RelayStore
	publisher message.Publisher
	cfg       Config
	wakes     wakes

	mu     sync.Mutex
	loop   *relayLoop // nil when the relay does not run
	schema string     // what is wrong with the tables, as checked at the start
}

// Report counts the events of a [Relay.RunOnce].
type Report struct {
	// Delivered events were confirmed and have left the outbox.
	Delivered int
	// Failed is how many attempts were counted.
	Failed int
	// Dead is how many events have used up their attempts, or could never be sent.
	Dead int
	// Left is how many events were read and not sent, because the transport or their route takes
	// nothing now. There may be more events behind them.
	Left int
}

// New returns a relay for outbox that publishes to publisher, which may be nil if cfg has
// downstreams. Commits through [producer.Outbox.Transact] wake it at once. It does no I/O. The
// publisher belongs to the caller, who closes it after the relay has ended.
func New[TX any](outbox *producer.Outbox[TX], publisher message.Publisher, cfg Config) (*Relay, error) {
	if outbox == nil {
		return nil, errors.New("relay config: outbox is nil")
	}
	from := outbox.RelaySource()
	if cfg.Logger == nil {
		cfg.Logger = from.Logger
	}
	return newRelay(from.Store, wakes{from.Commits, from.ID}, publisher, cfg)
}

// NewStandalone returns a relay for a process that writes no events; see [New]. It does no I/O.
func NewStandalone(store outbox.RelayStore, publisher message.Publisher, cfg Config) (*Relay, error) {
	return newRelay(store, wakes{}, publisher, cfg)
}

// wakes tells a relay of the commits of an outbox in its process. The store's signal tells of the
// same commits.
type wakes struct {
	signal *wakeup.Signal // nil: there is no outbox
	id     string         // of the outbox
}

func (w wakes) subscribe() (*wakeup.Subscription, func()) {
	if w.signal == nil {
		return &wakeup.Subscription{}, func() {} // its channel is nil
	}
	return w.signal.Subscribe()
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

// Run moves events until ctx ends. Then the relay sends nothing more, waits for the outcomes of
// events in flight, at most Config.ShutdownTimeout, records them, gives its shards back, and
// returns nil. A database or a transport that cannot be reached is no error: Run goes on trying and
// reports it in the log and in [Relay.Health]. It returns an error only if the relay runs already.
func (r *Relay) Run(ctx context.Context) error {
	_, err := r.run(ctx, false)
	return err
}

// RunOnce acquires shards, sends all due events, gives the shards back, and reports the numbers.
// Events in shards of another relay, in their backoff, or refused by the transport for now are
// left. It returns the first error of the database, or the cause of ctx's end.
func (r *Relay) RunOnce(ctx context.Context) (Report, error) {
	return r.run(ctx, true)
}

func (r *Relay) run(ctx context.Context, once bool) (Report, error) {
	woken, unsubscribe := r.wakes.subscribe()
	defer unsubscribe()
	out := r.newOutput()
	loop := newRelayLoop(r.store, out.sender, r.cfg, woken, once)
	loop.ownOutbox = r.wakes.id
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
// learns of faults. Neither delays the relay, and both end with the returned function.
func (r *Relay) prepare(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	for _, p := range append([]message.Publisher{r.publisher}, r.downstreams()...) {
		if c, ok := p.(connector); ok {
			tasks.Go(func() { _ = c.Connect(ctx) }) // its own health reports the result
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

// checked keeps what the store says of its tables.
func (r *Relay) checked(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schema = ""
	if err != nil {
		r.schema = err.Error()
		r.cfg.Logger.ErrorContext(ctx, "tables of the outbox are not as they should be, or cannot be reached", "relay", r.cfg.Name, "error", err)
	}
}

// output is the sender of a run, with the parts that have to be ended.
type output struct {
	sender  transport.Sender
	router  *topicRouter   // nil with a single publisher
	batches []*batchSender // of publishers that are no Sender
}

func (r *Relay) newOutput() *output {
	out := &output{}
	if len(r.cfg.Downstreams) == 0 {
		out.sender = out.senderOf(r.publisher, &r.cfg)
		return out
	}
	downs := slices.Clone(r.cfg.Downstreams)
	if r.publisher != nil {
		downs = append(downs, Downstream{Publisher: r.publisher})
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

// await waits for Publish calls, which take no context. Calls that do not return are left behind
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
