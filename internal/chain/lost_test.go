package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

// thief stands between clients and PostgreSQL. It swallows the answer to every nth
// COMMIT and hangs up.
type thief struct {
	listener net.Listener
	server   string
	every    int64
	commits  atomic.Int64
	stolen   atomic.Int64
	wg       sync.WaitGroup
}

// newThief returns a thief and the URL of the database behind it.
func newThief(t *testing.T, address string, every int64) (*thief, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	u, err := url.Parse(address)
	ok(t, err)
	th := &thief{listener: l, server: u.Host, every: every}
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery, u.Host = q.Encode(), l.Addr().String()
	th.wg.Go(th.serve)
	t.Cleanup(func() {
		_ = l.Close()
		th.wg.Wait()
	})
	return th, u.String()
}

func (th *thief) serve() {
	for {
		client, err := th.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", th.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		var robbed atomic.Bool
		th.wg.Go(func() {
			defer func() { _ = server.Close() }()
			pass(server, client, func(sent []byte) bool {
				if bytes.Contains(bytes.ToLower(sent), []byte("commit\x00")) && th.commits.Add(1)%th.every == 0 {
					robbed.Store(true)
				}
				return true
			})
		})
		th.wg.Go(func() {
			defer func() { _ = client.Close() }()
			pass(client, server, func([]byte) bool {
				if robbed.Load() { // the commit was answered, so it happened
					th.stolen.Add(1)
					return false
				}
				return true
			})
		})
	}
}

// pass copies from one to the other until one of them hangs up or look says no.
func pass(to, from net.Conn, look func([]byte) bool) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil || !look(buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func TestCommitsWhoseRepliesAreLostHaveOneEffect(t *testing.T) {
	t.Parallel()
	const n = 40
	shop, shopURL := newPostgres(t)
	stock, stockURL := newPostgres(t)
	shopThief, shopURL := newThief(t, shopURL, 3)
	stockThief, stockURL := newThief(t, stockURL, 3)
	topic := newTopic(t, "stock")
	robbed := openPostgres(t, stockURL)
	s := startService(t, robbed, outboxOf(t, robbed), newSubscriber(t, "stock"), topic,
		consumer.Config{Service: "stock"}, consumer.HandlerConfig{},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			if err := robbed.effect(ctx, w, "stock"); err != nil {
				return err
			}
			_, err := w.Write(ctx, producer.Event{Topic: topic + "_reserved", Key: w.Event().Key})
			return err
		})
	startRelay(t, outboxOf(t, shop), newPublisher(t), producer.RelayConfig{})

	outbox := outboxOf(t, openPostgres(t, shopURL))
	unknown := 0
	for i := range n {
		key := fmt.Sprint("order-", i)
		for err := errors.New("first"); err != nil; {
			err = outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				written, err := w.Write(ctx, numbered(topic, key, 1))
				if err != nil || written[0].Known {
					return err
				}
				return shop.exec(ctx, w.DB(), `INSERT INTO orders VALUES ($1)`, key)
			})
			if err != nil && !errors.Is(err, producer.ErrCommitUnknown) {
				t.Fatal(err)
			}
			if err != nil {
				unknown++
			}
		}
	}
	stock.wantEffects(t, "stock", n)
	orders, events := shop.number(`SELECT count(*) FROM orders`), shop.number(`SELECT count(*) FROM boxpair.outbox_events`)
	if orders != n || events != n {
		t.Errorf("%d orders and %d events", orders, events)
	}
	if emitted := stock.number(`SELECT count(*) FROM boxpair.outbox_events`); emitted != n {
		t.Errorf("%d events emitted by handlers", emitted)
	}
	if c := s.handler.Counters(); c.CommitsUnknown == 0 || c.Failed != 0 {
		t.Errorf("counters: %+v", c)
	}
	if unknown == 0 || shopThief.stolen.Load() == 0 || stockThief.stolen.Load() == 0 {
		t.Errorf("%d unknown commits, %d and %d replies were lost", unknown, shopThief.stolen.Load(), stockThief.stolen.Load())
	}
}
