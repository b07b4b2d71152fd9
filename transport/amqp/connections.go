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
	// maxConnections is how many connections a Subscriber has at most.
	maxConnections = 16
	// maxLosses is how often a connection is lost, shortly after it was opened, until its queues
	// part.
	maxLosses = 3
	// splitInto is into how many connections the queues of one part.
	splitInto = 4
	// stableLifetime is how long a connection lasts that is not lost again and again, besides twice the
	// longest pause before the subscription that ends it consumes again.
	stableLifetime = 10 * time.Second
)

// connections are the connections of a Subscriber. Its queues share one. A message that the client cannot
// read and a queue that gives no answer end the connection, again and again, and the client cannot
// always tell whose message it was: the queues of a connection that is lost again and again part,
// until the one that ends its connection is alone with it.
type connections struct {
	broker *broker
	logger *slog.Logger

	mu      sync.Mutex
	all     []*sharedConnection          // the first is the one that is shared
	byQueue map[string]*sharedConnection // by queue
}

func newConnections(b *broker, logger *slog.Logger) *connections {
	return &connections{broker: b, logger: logger, all: []*sharedConnection{newSharedConnection(b)}, byQueue: make(map[string]*sharedConnection)}
}

// get returns the connection of a queue, after dialling if there is none that works.
func (cs *connections) get(ctx context.Context, queue string) (*connection, error) {
	return cs.find(queue).get(ctx)
}

// find returns the link of a queue, which may be another one than before.
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

// split spreads the queues of l over several links, or names the one that is alone. Called with mu
// locked.
func (cs *connections) split(sc *sharedConnection) {
	queues := cs.queues(sc)
	if len(queues) == 1 {
		if !sc.dedicated {
			sc.dedicated = true
			cs.logger.Error("the connection ends again and again while this queue is consumed, so it has one of its own; look for a message "+
				"that no client can read, or a queue without a leader", "queue", queues[0])
		}
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

// queues returns the queues of a link. Called with mu locked.
func (cs *connections) queues(sc *sharedConnection) []string {
	var queues []string
	for queue, of := range cs.byQueue {
		if of == sc {
			queues = append(queues, queue)
		}
	}
	return queues
}

// unused returns a link that no queue has, or nil. Called with mu locked.
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

// dedicate gives a queue that left a request unanswered a connection of its own, or if there are too
// many, that of another such queue.
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
	cs.logger.Error("queue gives no answer, which ends the connection that it is asked on, so it has one of its own", "queue", queue)
}

// release forgets queues that are not subscribed to any more, unless they are known to end their
// connection.
func (cs *connections) release(of layout) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, queue := range append(of.names(), of.queue) {
		if sc := cs.byQueue[queue]; sc != nil && !sc.dedicated {
			delete(cs.byQueue, queue)
		}
	}
}

// isolated tells whether a queue has another connection than those of which nothing is known.
func (cs *connections) isolated(queue string) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	sc := cs.byQueue[queue]
	return sc != nil && sc != cs.all[0]
}

// each does something to every link.
func (cs *connections) each(do func(*sharedConnection)) {
	cs.mu.Lock()
	all := cs.all
	cs.mu.Unlock()
	for _, sc := range all {
		do(sc)
	}
}

// sharedConnection is a connection that several share, opened when it is needed.
type sharedConnection struct {
	broker *broker
	sem    chan struct{} // capacity 1: a lock that gives way to a context
	conn   *connection   // guarded by sem
	closed bool          // guarded by sem

	current atomic.Pointer[connection] // the same as conn, for cut

	// What follows is guarded by the mutex of links.
	lastLost  *connection // the last one that is counted
	losses    int         // of connections, one shortly after the other
	dedicated bool        // what its queue does ends it
}

func newSharedConnection(b *broker) *sharedConnection {
	return &sharedConnection{broker: b, sem: make(chan struct{}, 1)}
}

// countLoss tells whether a connection has been lost since it was last called, and counts it.
func (sc *sharedConnection) countLoss() bool {
	conn := sc.current.Load()
	if conn == nil || conn == sc.lastLost || !conn.IsClosed() {
		return false
	}
	sc.lastLost = conn
	select {
	case err := <-conn.ended:
		if err != nil && err.Code == amqp091.ConnectionForced { // by an operator, or the end of the broker
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

// get returns the connection, after dialling if there is none that works.
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

// cut breaks the connection, so that nobody waits for an answer any more.
func (sc *sharedConnection) cut() {
	if conn := sc.current.Load(); conn != nil {
		conn.raw.abort()
	}
}

// close closes the connection. Who waits in get must be told by its context.
func (sc *sharedConnection) close() {
	sc.sem <- struct{}{}
	defer func() { <-sc.sem }()
	sc.closed = true
	if sc.conn != nil {
		sc.conn.shut()
		sc.conn = nil
	}
}
