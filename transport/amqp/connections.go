package amqp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

const (
	// maxConnections is the largest number of connections of a Subscriber.
	maxConnections = 16
	// maxLosses is how often a connection may be lost shortly after it was opened, before its
	// queues are split.
	maxLosses = 3
	// splitInto is the number of connections into which the queues of one connection are split.
	splitInto = 4
	// stableLifetime is how long a connection must last for earlier losses to be forgotten. Twice
	// the longest pause of a subscription is added, since the subscription that ends the connection
	// consumes again only after its pause.
	stableLifetime = 10 * time.Second
)

// connections are the connections of a Subscriber. All queues share one connection at first. A
// message that the client cannot read, or a queue that does not answer, ends the connection again
// and again, and the client cannot always tell the cause. So after repeated losses of a connection,
// its queues are split over several connections, until the queue that causes the losses is alone.
type connections struct {
	broker *broker
	logger *slog.Logger

	mu      sync.Mutex
	all     []*sharedConnection // the first connection is shared by all queues at first
	byQueue map[string]*sharedConnection
}

func newConnections(b *broker, logger *slog.Logger) *connections {
	return &connections{broker: b, logger: logger, all: []*sharedConnection{newSharedConnection(b)}, byQueue: make(map[string]*sharedConnection)}
}

// get returns the connection of a queue. It connects if there is no working connection.
func (cs *connections) get(ctx context.Context, queue string) (*connection, error) {
	return cs.find(queue).get(ctx)
}

// find returns the shared connection of a queue, which may have changed since the last call.
func (cs *connections) find(queue string) *sharedConnection {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	sc := cs.byQueue[queue]
	if sc == nil {
		sc = cs.all[0]
		cs.byQueue[queue] = sc
	}
	if sc.countLoss() && sc.losses >= maxLosses {
		cs.split(sc)
	}
	return cs.byQueue[queue]
}

// split spreads the queues of sc over several connections. If sc has only one queue, split names the
// queue in the log, once, and moves it from the first connection, which later queues share. Called
// with mu locked.
func (cs *connections) split(sc *sharedConnection) {
	queues := cs.queues(sc)
	if len(queues) == 1 {
		if sc.dedicated {
			return
		}
		if sc == cs.all[0] {
			if next := cs.unused(); next != nil {
				sc.losses, cs.byQueue[queues[0]] = 0, next
				sc = next
			}
		}
		sc.dedicated = true
		cs.logger.Error("connection ends again and again while this queue is consumed; the queue has a connection of its own now; look for a message "+
			"that no client can read, or a queue without a leader", "queue", queues[0])
		return
	}
	sc.losses = maxLosses - 2
	size := (len(queues) + splitInto - 1) / splitInto
	for i := size; i < len(queues); i += size {
		next := cs.unused()
		if next == nil {
			return
		}
		next.losses = sc.losses
		for _, queue := range queues[i:min(i+size, len(queues))] {
			cs.byQueue[queue] = next
		}
	}
}

// queues returns the queues that share sc. Called with mu locked.
func (cs *connections) queues(sc *sharedConnection) []string {
	var queues []string
	for queue, of := range cs.byQueue {
		if of == sc {
			queues = append(queues, queue)
		}
	}
	return queues
}

// unused returns a connection that has no queue, or nil. Called with mu locked.
func (cs *connections) unused() *sharedConnection {
	for _, sc := range cs.all[1:] {
		if len(cs.queues(sc)) == 0 {
			return sc
		}
	}
	if len(cs.all) == maxConnections {
		return nil
	}
	sc := newSharedConnection(cs.broker)
	cs.all = append(cs.all, sc)
	return sc
}

// dedicate gives a connection of its own to a queue that left a request unanswered. If there are
// too many connections, the queue shares the connection of another such queue.
func (cs *connections) dedicate(queue string, err error) {
	if !errors.Is(err, errNoAnswer) {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if sc := cs.byQueue[queue]; sc != nil && sc.dedicated {
		return
	}
	next := cs.unused()
	for i := 1; next == nil && i < len(cs.all); i++ {
		if cs.all[i].dedicated {
			next = cs.all[i]
		}
	}
	if next == nil {
		return
	}
	next.dedicated = true
	cs.byQueue[queue] = next
	cs.logger.Error("queue gives no answer to requests, which ends its connection; the queue has a connection of its own now", "queue", queue)
}

// release forgets queues after their subscription, except queues with a dedicated connection.
func (cs *connections) release(of layout) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, queue := range append(of.names(), of.queue) {
		if sc := cs.byQueue[queue]; sc != nil && !sc.dedicated {
			delete(cs.byQueue, queue)
		}
	}
}

// isolated tells whether a queue has a connection other than the first one.
func (cs *connections) isolated(queue string) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	sc := cs.byQueue[queue]
	return sc != nil && sc != cs.all[0]
}

// each calls do for every connection.
func (cs *connections) each(do func(*sharedConnection)) {
	cs.mu.Lock()
	all := cs.all
	cs.mu.Unlock()
	for _, sc := range all {
		do(sc)
	}
}

// sharedConnection is a connection for some queues, opened on demand.
type sharedConnection struct {
	broker *broker
	sem    chan struct{} // capacity 1: a lock whose wait a context can end
	conn   *connection   // guarded by sem
	closed bool          // guarded by sem

	current atomic.Pointer[connection] // equal to conn, for cut

	// The fields below are guarded by the mutex of connections.
	lastLost  *connection // the connection that was counted last
	losses    int         // losses of connections shortly after they were opened
	dedicated bool        // for a queue that ends its connection
}

func newSharedConnection(b *broker) *sharedConnection {
	return &sharedConnection{broker: b, sem: make(chan struct{}, 1)}
}

// countLoss tells whether a connection was lost since the last call, and counts the loss.
func (sc *sharedConnection) countLoss() bool {
	conn := sc.current.Load()
	if conn == nil || conn == sc.lastLost || !conn.IsClosed() {
		return false
	}
	sc.lastLost = conn
	select {
	case err := <-conn.ended:
		if err != nil && err.Code == amqp091.ConnectionForced { // by an operator, or by a stop of the broker
			return false
		}
	default:
	}
	if time.Since(conn.since) > stableLifetime+2*sc.broker.backoff.max {
		sc.losses = 0
	}
	sc.losses++
	return true
}

// get returns the connection. It connects if there is no working connection.
func (sc *sharedConnection) get(ctx context.Context) (*connection, error) {
	select {
	case sc.sem <- struct{}{}:
		defer func() { <-sc.sem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if sc.closed {
		return nil, ErrClosed
	}
	if sc.conn != nil && !sc.conn.IsClosed() {
		return sc.conn, nil
	}
	conn, err := sc.broker.dial(ctx)
	if err != nil {
		return nil, err
	}
	sc.conn = conn
	sc.current.Store(conn)
	return conn, nil
}

// cut breaks the connection, so that no call waits for an answer any more.
func (sc *sharedConnection) cut() {
	if conn := sc.current.Load(); conn != nil {
		conn.raw.abort()
	}
}

// close closes the connection. The context of a call that waits in get must end before.
func (sc *sharedConnection) close() {
	sc.sem <- struct{}{}
	defer func() { <-sc.sem }()
	sc.closed = true
	if sc.conn != nil {
		sc.conn.shut()
		sc.conn = nil
	}
}
