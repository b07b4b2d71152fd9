package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/consumer"
)

// statementCounter counts what is sent to PostgreSQL: statements, and those of batches one by one.
type statementCounter struct{ n atomic.Int64 }

func (c *statementCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *statementCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *statementCounter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	c.n.Add(1)
}

func (c *statementCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TestRedeliveredMessagesCostHardlyMoreStatementsThanFreshOnes has them handled in groups of 32, as
// after the crash of a consumer.
func TestRedeliveredMessagesCostHardlyMoreStatementsThanFreshOnes(t *testing.T) {
	t.Parallel()
	const size, messages = 32, 32 * 8
	count := &statementCounter{}
	store := migrated(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = count })
	inbox, err := consumer.New[pgx.Tx](store, consumer.Config{Service: "stock", CacheSize: -1})
	if err != nil {
		t.Fatal(err)
	}
	h, err := inbox.Handle("reserve", nothing[pgx.Tx], consumer.HandlerConfig{Topic: "orders", Group: consumer.GroupConfig{Size: size, Wait: 20 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	run := func(from int, mark func(*message.Message) *message.Message) (perMessage float64, took time.Duration) {
		before, began := count.n.Load(), time.Now()
		for n := from; n < from+messages; n += size {
			all := make([]*message.Message, size)
			for k := range all {
				all[k] = mark(msg(n + k))
			}
			consumeAll(t, h, all...)
		}
		return float64(count.n.Load()-before) / messages, time.Since(began)
	}
	run(0, func(m *message.Message) *message.Message { return m }) // connects, and registers
	fresh, freshly := run(10_000, func(m *message.Message) *message.Message { return m })
	redelivered, again := run(20_000, again)
	t.Logf("statements of a message: %.2f, and %.2f of a redelivered one; in %.2f times the time", fresh, redelivered, float64(again)/float64(freshly))
	if redelivered > 2*fresh {
		t.Errorf("%.2f statements of a redelivered message, %.2f of another", redelivered, fresh)
	}
	if c := h.Counters(); c.Applied != 3*messages || c.Groups != 3*messages/size || c.SoloStarts != messages {
		t.Errorf("counters: %+v", c)
	}
}
