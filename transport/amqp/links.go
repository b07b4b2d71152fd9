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
	// maxLinks is how many connections a Subscriber has at most.
	maxLinks = 16
	// manyLosses is how often a connection is lost, shortly after it was opened, until its queues
	// part.
	manyLosses = 3
	// partsOfALink is into how many connections the queues of one part.
	partsOfALink = 4
	// longLife is how long a connection lasts that is not lost again and again, besides twice the
	// longest pause before the subscription that ends it consumes again.
	longLife = 10 * time.Second
)

// links are the connections of a Subscriber. Its queues share one. A message that the client cannot
// read and a queue that gives no answer end the connection, again and again, and the client cannot
// always tell whose message it was: the queues of a connection that is lost again and again part,
// until the one that ends its connection is alone with it.
type links struct {
	broker *broker
	logger *slog.Logger

	mu  sync.Mutex
	all []*link          // the first is the one that is shared
	of  map[string]*link // by queue
}

func newLinks(b *broker, logger *slog.Logger) *links {
	return &links{broker: b, logger: logger, all: []*link{newLink(b)}, of: make(map[string]*link)}
}

// get returns the connection of a queue, after dialling if there is none that works.
func (ls *links) get(ctx context.Context, queue string) (*connection, error) {
	return ls.find(queue).get(ctx)
}

// find returns the link of a queue, which may be another one than before.
func (ls *links) find(queue string) *link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.of[queue]
	if l == nil {
		l = ls.all[0]
		ls.of[queue] = l
	}
	if l.lostAgain() && l.losses >= manyLosses {
		ls.part(l)
	}
	return ls.of[queue]
}

// part spreads the queues of l over several links, or names the one that is alone. Called with mu
// locked.
func (ls *links) part(l *link) {
	queues := ls.queues(l)
	if len(queues) == 1 {
		if !l.blamed {
			l.blamed = true
			ls.logger.Error("the connection ends again and again while this queue is consumed, so it has one of its own; look for a message "+
				"that no client can read, or a queue without a leader", "queue", queues[0])
		}
		return
	}
	l.losses = manyLosses - 2
	size := (len(queues) + partsOfALink - 1) / partsOfALink
	for i := size; i < len(queues); i += size {
		next := ls.spare()
		if next == nil {
			return
		}
		next.losses = l.losses
		for _, queue := range queues[i:min(i+size, len(queues))] {
			ls.of[queue] = next
		}
	}
}

// queues returns the queues of a link. Called with mu locked.
func (ls *links) queues(l *link) []string {
	var queues []string
	for queue, of := range ls.of {
		if of == l {
			queues = append(queues, queue)
		}
	}
	return queues
}

// spare returns a link that no queue has, or nil. Called with mu locked.
func (ls *links) spare() *link {
	for _, l := range ls.all[1:] {
		if len(ls.queues(l)) == 0 {
			return l
		}
	}
	if len(ls.all) == maxLinks {
		return nil
	}
	l := newLink(ls.broker)
	ls.all = append(ls.all, l)
	return l
}

// blame gives a queue that left a request unanswered a connection of its own, or if there are too
// many, that of another such queue.
func (ls *links) blame(queue string, err error) {
	if !errors.Is(err, errNoAnswer) {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.of[queue]; l != nil && l.blamed {
		return
	}
	next := ls.spare()
	for i := 1; next == nil && i < len(ls.all); i++ {
		if ls.all[i].blamed {
			next = ls.all[i]
		}
	}
	if next == nil {
		return
	}
	next.blamed = true
	ls.of[queue] = next
	ls.logger.Error("queue gives no answer, which ends the connection that it is asked on, so it has one of its own", "queue", queue)
}

// release forgets queues that are not subscribed to any more, unless they are known to end their
// connection.
func (ls *links) release(of layout) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, queue := range append(of.names(), of.queue) {
		if l := ls.of[queue]; l != nil && !l.blamed {
			delete(ls.of, queue)
		}
	}
}

// apart tells whether a queue has another connection than those of which nothing is known.
func (ls *links) apart(queue string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.of[queue]
	return l != nil && l != ls.all[0]
}

// each does something to every link.
func (ls *links) each(do func(*link)) {
	ls.mu.Lock()
	all := ls.all
	ls.mu.Unlock()
	for _, l := range all {
		do(l)
	}
}

// link is a connection that several share, opened when it is needed.
type link struct {
	broker *broker
	sem    chan struct{} // capacity 1: a lock that gives way to a context
	conn   *connection   // guarded by sem
	closed bool          // guarded by sem

	current atomic.Pointer[connection] // the same as conn, for cut

	// What follows is guarded by the mutex of links.
	lost   *connection // the last one that is counted
	losses int         // of connections, one shortly after the other
	blamed bool        // what its queue does ends it
}

func newLink(b *broker) *link { return &link{broker: b, sem: make(chan struct{}, 1)} }

// lostAgain tells whether a connection has been lost since it was last called, and counts it.
func (l *link) lostAgain() bool {
	conn := l.current.Load()
	if conn == nil || conn == l.lost || !conn.IsClosed() {
		return false
	}
	l.lost = conn
	select {
	case err := <-conn.ended:
		if err != nil && err.Code == amqp091.ConnectionForced { // by an operator, or the end of the broker
			return false
		}
	default:
	}
	if time.Since(conn.since) > longLife+2*l.broker.backoff.max {
		l.losses = 0
	}
	l.losses++
	return true
}

// get returns the connection, after dialling if there is none that works.
func (l *link) get(ctx context.Context) (*connection, error) {
	select {
	case l.sem <- struct{}{}:
		defer func() { <-l.sem }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l.closed {
		return nil, ErrClosed
	}
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil
	}
	conn, err := l.broker.dial(ctx)
	if err != nil {
		return nil, err
	}
	l.conn = conn
	l.current.Store(conn)
	return conn, nil
}

// cut breaks the connection, so that nobody waits for an answer any more.
func (l *link) cut() {
	if conn := l.current.Load(); conn != nil {
		conn.raw.abort()
	}
}

// close closes the connection. Who waits in get must be told by its context.
func (l *link) close() {
	l.sem <- struct{}{}
	defer func() { <-l.sem }()
	l.closed = true
	if l.conn != nil {
		l.conn.shut()
		l.conn = nil
	}
}
