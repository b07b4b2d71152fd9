package chain

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// benchKeys is how many messages the queue of BenchmarkDuplicates holds copies of.
const benchKeys = 1024

// BenchmarkDuplicates takes copies that the window knows from a queue, through a
// Watermill router, beside a plain amqp091 loop that acknowledges each message and
// does nothing else. Processor time is that of this process, whoever else is busy.
func BenchmarkDuplicates(b *testing.B) {
	url := testenv.AMQPURL(b)
	b.Run("plain", func(b *testing.B) {
		conn, queue := benchQueue(b, url)
		ch, err := conn.Channel()
		benchOK(b, err)
		benchOK(b, ch.Qos(100, 0, false))
		measure(b)
		deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
		benchOK(b, err)
		for range b.N {
			d := <-deliveries
			benchOK(b, d.Ack(false))
		}
	})
	b.Run("router", func(b *testing.B) {
		_, queue := benchQueue(b, url)
		benchRouter(b, url, queue, benchInbox(b))
	})
}

func benchOK(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// measure begins the measurement, and reports the processor time of this process
// when the benchmark ends.
func measure(b *testing.B) {
	b.ReportAllocs()
	runtime.GC()
	before := processorTime()
	b.ResetTimer()
	b.Cleanup(func() { b.ReportMetric(float64((processorTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op") })
}

// benchQueue fills a queue with b.N copies of benchKeys messages.
func benchQueue(b *testing.B, url string) (*amqp091.Connection, string) {
	conn, err := amqp091.Dial(url)
	benchOK(b, err)
	ch, err := conn.Channel()
	benchOK(b, err)
	name := testenv.Name(b)
	_, err = ch.QueueDeclare(name, true, false, false, false, nil)
	benchOK(b, err)
	b.Cleanup(func() {
		if _, err := ch.QueueDelete(name, false, false, false); err != nil {
			b.Error(err)
		}
		_ = conn.Close()
	})
	benchOK(b, ch.Confirm(false))
	var last *amqp091.DeferredConfirmation
	stamp := time.Now().UTC().Format(time.RFC3339Nano)
	for n := range b.N {
		id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, n%benchKeys))
		last, err = ch.PublishWithDeferredConfirm("", name, true, false, amqp091.Publishing{
			MessageId: id.String(), Body: make([]byte, 512), DeliveryMode: amqp091.Persistent,
			Headers: amqp091.Table{
				"_watermill_message_uuid": id.String(), transport.MetaKey: fmt.Sprint("key-", n%benchKeys),
				transport.MetaDigest: hex.EncodeToString(id[:]), transport.MetaStamp: stamp,
			},
		})
		benchOK(b, err)
	}
	_, err = last.WaitContext(b.Context())
	benchOK(b, err)
	return conn, name
}

// benchInbox returns a handler that has handled every message once.
func benchInbox(b *testing.B) func(*message.Message) error {
	db, err := sqlite.Open(filepath.Join(b.TempDir(), "bench.db"))
	benchOK(b, err)
	b.Cleanup(func() { _ = db.Close() })
	_, err = sqlite.Migrate(b.Context(), db, sqlite.Config{})
	benchOK(b, err)
	store, err := sqlite.New(db, sqlite.Config{})
	benchOK(b, err)
	inbox, err := consumer.New(store, consumer.Config{Service: "bench"})
	benchOK(b, err)
	h, err := inbox.Handle("effect", func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { return nil },
		consumer.HandlerConfig{Topic: "bench"})
	benchOK(b, err)
	for n := range benchKeys {
		id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, n))
		msg := message.NewMessage(id.String(), nil)
		msg.Metadata[transport.MetaDigest] = hex.EncodeToString(id[:])
		benchOK(b, h.Consume(msg))
	}
	return h.Consume
}

// benchRouter has a Watermill router take b.N messages off queue.
func benchRouter(b *testing.B, url, queue string, handle func(*message.Message) error) {
	cfg := amqp.DurableQueue(url)
	cfg.Queue.GenerateName = func(string) string { return queue }
	s, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: cfg, QueueType: amqp.Classic})
	benchOK(b, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	benchOK(b, err)
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var handled atomic.Int64
	router.AddConsumerHandler("effect", "bench", s, func(msg *message.Message) error {
		if err := handle(msg); err != nil {
			return err
		}
		if handled.Add(1) == int64(b.N) {
			stop()
		}
		return nil
	})
	measure(b)
	if err := router.Run(ctx); err != nil {
		b.Error(err)
	}
	b.StopTimer()
	benchOK(b, s.Close())
}
