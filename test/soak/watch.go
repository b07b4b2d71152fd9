package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
)

// watch observes the chain from outside: it holds producers back when too many events are under
// way, and measures how long no effect has appeared.
type watch struct {
	sys     *system.System
	backlog int
	batch   int          // the most events in a message at the broker
	unheard func() int64 // events that wait for a queue, which is no backlog
	conn    *amqp091.Connection
	ch      *amqp091.Channel

	held             bool
	placed, effects  int64
	pending, waiting int
	moved            time.Time // time of the last new effect
	stall            time.Duration
}

func newWatch(sys *system.System, backlog int, unheard func() int64) *watch {
	return &watch{sys: sys, backlog: backlog, unheard: unheard, moved: time.Now()}
}

// look reads the progress. A number that cannot be read keeps its last value.
func (w *watch) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var placed, effects int64
	var pending int
	err := w.sys.OutboxPool().QueryRow(ctx, `SELECT (SELECT coalesce(sum(n), 0)::bigint FROM aggregates),
		(SELECT count(*) FROM (SELECT FROM boxpair.outbox_queue LIMIT 1000000) q)`).Scan(&placed, &pending)
	if err == nil {
		w.placed, w.pending = placed, max(0, pending-int(w.unheard()))
	}
	// The sequence also counts rolled-back rows, but is only used to detect movement.
	err = w.sys.InboxPool().QueryRow(ctx, `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM effects_seq_seq`).Scan(&effects)
	if err == nil && effects != w.effects {
		w.effects, w.moved = effects, time.Now()
	}
	w.stall = max(w.stall, time.Since(w.moved))
	if n, err := w.queued(); err == nil {
		w.waiting = n
	}
}

// queued returns how many messages wait at the broker.
func (w *watch) queued() (int, error) {
	if w.ch == nil || w.ch.IsClosed() {
		w.close()
		conn, err := amqp091.DialConfig(w.sys.Servers.RabbitMQ.AdminURL(), amqp091.Config{Dial: amqp091.DefaultDial(2 * time.Second)})
		if err != nil {
			return 0, err
		}
		w.conn = conn
		if w.ch, err = conn.Channel(); err != nil {
			return 0, err
		}
	}
	q, err := w.ch.QueueDeclarePassive(child.QueueName(w.sys.Topic, "stock"), true, false, false, false, nil)
	return q.Messages, err
}

func (w *watch) close() {
	if w.conn != nil {
		_ = w.conn.Close()
	}
	w.conn, w.ch = nil, nil
}

// brake holds producers back, or releases them.
func (w *watch) brake(ctx context.Context) {
	on := w.pending+w.batch*w.waiting > w.backlog
	if w.held && !on {
		on = w.pending+w.batch*w.waiting > w.backlog/2
	}
	if on == w.held {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := w.sys.OutboxPool().Exec(ctx, `UPDATE brake SET held = $1`, on); err == nil {
		w.held = on
	}
}

// rest waits until all placed orders have been applied, and tells whether they have.
func (w *watch) rest(ctx context.Context, limit time.Duration) (time.Duration, bool) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		left, err := w.sys.Left(ctx)
		if err == nil && left == 0 {
			return time.Since(began), true
		}
		if !sleep(ctx, 250*time.Millisecond) {
			return time.Since(began), false
		}
	}
}

func (w *watch) line(c *counts, kills int, f *faults, injected int) string {
	brake := ""
	if w.held {
		brake = ", brake on"
	}
	return fmt.Sprintf("%d placed, %d effects, %d in the outbox, %d at the broker%s; %d killed, %d stopped, "+
		"%d paused, %d PostgreSQL crashes, %d RabbitMQ kills, %d partitions; %d copies injected, %d suppressed",
		w.placed, w.effects, w.pending, w.waiting, brake, kills, f.counted("stop"),
		f.counted("pause"), f.counted("postgres"), f.counted("rabbit"), f.counted("partition"), injected, c.suppressed)
}
