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

// start starts the goroutine that connects and judges. Called with mu locked.
func (p *Publisher) start() {
	if p.started {
		return
	}
	p.started = true
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.tasks.Go(func() { p.run(ctx) })
}

// run keeps a channel open until the publisher is closed, which ends ctx.
func (p *Publisher) run(ctx context.Context) {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		begin := time.Now()
		conn, err := p.dial(ctx)
		if err == nil {
			err = p.serve(conn)
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
			p.config.Logger.Warn("no connection for publishing", "broker", p.broker.name, "attempt", attempt+1, "error", err)
			p.setDown(err)
		}
		p.broker.backoff.wait(ctx, attempt)
	}
	p.setDown(ErrClosed)
}

func (p *Publisher) setDown(err error) {
	p.mu.Lock()
	p.down, p.blocked = err, ""
	p.broadcast()
	p.mu.Unlock()
	p.giveUpSuspects(err)
}

// serve opens channels on conn and judges the messages that are published on them, until conn or
// the publisher is closed. An error means that no channel could be opened.
func (p *Publisher) serve(conn *connection) error {
	blocked := conn.NotifyBlocked(make(chan amqp091.Blocking, 16))
	for {
		c, err := p.openChannel(conn)
		if err != nil {
			return err
		}
		if p.retrySuspects(c) {
			p.mu.Lock()
			p.current, p.down = c, nil
			p.broadcast()
			p.mu.Unlock()
			p.config.Logger.Info("channel for publishing opened", "broker", p.broker.name)
			p.judge(c, blocked)
		}

		p.mu.Lock()
		if p.current == c {
			p.current = nil
		}
		failure, closed := c.failure, p.closed
		if conn.IsClosed() {
			p.blocked = ""
		}
		p.broadcast()
		p.mu.Unlock()
		if closed {
			return nil
		}
		p.config.Logger.Warn("channel for publishing closed", "broker", p.broker.name, "error", failure)
		if conn.IsClosed() {
			return nil
		}
	}
}

func (p *Publisher) openChannel(conn *connection) (*confirmChannel, error) {
	defer conn.cutAfter(p.config.ConfirmTimeout)()
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	c := &confirmChannel{
		conn: conn,
		ch:   ch,
		// The channel has room for more returns than there can be unconfirmed messages. If it were
		// full, amqp091 would wait, and then drop the return.
		returns:   ch.NotifyReturn(make(chan amqp091.Return, p.config.Window+16)),
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
func (p *Publisher) dial(ctx context.Context) (conn *connection, err error) {
	connected := make(chan struct{})
	p.tasks.Go(func() {
		defer close(connected)
		conn, err = p.broker.dial(ctx)
	})
	for {
		select {
		case <-connected:
			return conn, err
		case <-p.wake:
		}
		for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
			p.reportSuspects(*unavailable(fmt.Errorf("not confirmed yet: %w", cause)), func(s *slot) bool { return errors.Is(s.context().Err(), cause) })
		}
	}
}

func (p *Publisher) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}
