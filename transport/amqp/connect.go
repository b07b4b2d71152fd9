package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// stableAfter is how long a connection must have lasted to be replaced without a pause.
const stableAfter = time.Second

// connector keeps a channel of a publisher open.
type connector struct {
	*Publisher

	started bool
	cancel  context.CancelFunc // ends attempts to connect
}

// start starts the goroutine that connects and judges. Called with mu locked.
func (cn *connector) start() {
	if cn.started {
		return
	}
	cn.started = true
	ctx, cancel := context.WithCancel(context.Background())
	cn.cancel = cancel
	cn.tasks.Go(func() { cn.run(ctx) })
}

// run keeps a channel open until the publisher is closed, which ends ctx.
func (cn *connector) run(ctx context.Context) {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		begin := time.Now()
		conn, err := cn.dial(ctx)
		if err == nil {
			err = cn.serve(conn)
			conn.shut()
			if time.Since(begin) > stableAfter {
				attempt = -1
				continue
			}
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			if tells(attempt) {
				cn.config.Logger.Warn("no connection for publishing", "broker", cn.broker.name, "attempt", attempt+1, "error", err)
			}
			cn.setDown(err)
		}
		cn.broker.backoff.wait(ctx, attempt)
	}
	cn.setDown(ErrClosed)
}

func (cn *connector) setDown(err error) {
	cn.mu.Lock()
	cn.down, cn.blocked = err, ""
	cn.broadcast()
	cn.mu.Unlock()
	cn.suspects.giveUp(err)
}

// serve opens channels on conn and judges the messages that are published on them, until conn or
// the publisher is closed. An error means that no channel could be opened.
func (cn *connector) serve(conn *connection) error {
	blocked := conn.NotifyBlocked(make(chan amqp091.Blocking, 16))
	for {
		c, err := cn.openChannel(conn)
		if err != nil {
			return err
		}
		if cn.suspects.retryAll(c) {
			cn.mu.Lock()
			cn.current, cn.down = c, nil
			cn.broadcast()
			cn.mu.Unlock()
			cn.config.Logger.Info("channel for publishing opened", "broker", cn.broker.name)
			cn.judge.watch(c, blocked)
		}

		cn.mu.Lock()
		if cn.current == c {
			cn.current = nil
		}
		failure, closed := c.failure, cn.closed
		if conn.IsClosed() {
			cn.blocked = ""
		}
		cn.broadcast()
		cn.mu.Unlock()
		if closed {
			return nil
		}
		cn.config.Logger.Warn("channel for publishing closed", "broker", cn.broker.name, "error", failure)
		if conn.IsClosed() {
			return nil
		}
	}
}

func (cn *connector) openChannel(conn *connection) (*confirmChannel, error) {
	defer conn.cutAfter(cn.config.ConfirmTimeout)()
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	c := &confirmChannel{
		conn: conn,
		ch:   ch,
		// The channel has room for more returns than there can be unconfirmed messages. If it were
		// full, amqp091 would wait, and then drop the return.
		returns:   ch.NotifyReturn(make(chan amqp091.Return, cn.config.Window+16)),
		ended:     ch.NotifyClose(make(chan *amqp091.Error, 1)),
		prepared:  make(map[string]time.Time),
		missing:   make(map[string]time.Time),
		preparing: make(map[string]*preparation),
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("enter confirm mode: %w", err)
	}
	return c, nil
}

// dial connects. Meanwhile it reports suspects whose context ends.
func (cn *connector) dial(ctx context.Context) (conn *connection, err error) {
	connected := make(chan struct{})
	cn.tasks.Go(func() {
		defer close(connected)
		conn, err = cn.broker.dial(ctx)
	})
	for {
		select {
		case <-connected:
			return conn, err
		case <-cn.judge.wake:
		}
		for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
			cn.suspects.report(*unavailable(fmt.Errorf("not confirmed yet: %w", cause)), func(s *slot) bool { return errors.Is(s.context().Err(), cause) })
		}
	}
}

func (p *Publisher) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}
