package amqp_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// BenchmarkPublish compares Send with a plain amqp091 loop that pipelines its
// confirms, both with the same window, headers and payload. Look at the ratio
// within one run.
func BenchmarkPublish(b *testing.B) {
	url := testenv.AMQPURL(b)
	for _, queueType := range []amqp.QueueType{amqp.Classic, amqp.Quorum} {
		name := [...]string{amqp.Quorum: "quorum", amqp.Classic: "classic"}[queueType]
		for _, window := range []int{100, 1000} {
			b.Run(fmt.Sprintf("%s/window=%d/plain-amqp091", name, window), func(b *testing.B) {
				benchmarkPlain(b, url, benchQueue(b, url, queueType), window)
			})
			b.Run(fmt.Sprintf("%s/window=%d/boxpair", name, window), func(b *testing.B) {
				benchmarkSend(b, url, benchQueue(b, url, queueType), window)
			})
		}
	}
}

// benchQueue declares a queue that is deleted after the benchmark.
func benchQueue(b *testing.B, url string, queueType amqp.QueueType) string {
	name := testenv.Name(b)
	ch := channel(b, url)
	args := amqp091.Table{}
	if queueType == amqp.Quorum {
		args["x-queue-type"] = "quorum"
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if _, err := ch.QueueDelete(name, false, false, false); err != nil {
			b.Error(err)
		}
	})
	return name
}

func benchMessage() *message.Message {
	msg := message.NewMessage("6f2c1a1e-1f7e-5d0b-9d7e-3f0f5c1d2e3a", make([]byte, 256))
	msg.Metadata[transport.MetaKey] = "order-4711"
	msg.Metadata[transport.MetaType] = "order.placed"
	msg.Metadata[transport.MetaProducer] = "orders"
	msg.Metadata[transport.MetaSource] = "order/4711"
	msg.Metadata[transport.MetaVersion] = "3"
	msg.Metadata[transport.MetaIndex] = "0"
	msg.Metadata[transport.MetaDigest] = "0123456789abcdef0123456789abcdef"
	msg.Metadata[transport.MetaStamp] = "2026-11-20T10:20:30.123456Z"
	return msg
}

func benchmarkPlain(b *testing.B, url, queue string, window int) {
	ch := channel(b, url)
	if err := ch.Confirm(false); err != nil {
		b.Fatal(err)
	}
	msg := benchMessage()
	b.ReportAllocs()
	b.ResetTimer()
	pending := make([]*amqp091.DeferredConfirmation, window)
	for i := range b.N {
		if c := pending[i%window]; c != nil && !c.Wait() {
			b.Fatal("not confirmed")
		}
		headers := amqp091.Table{"_watermill_message_uuid": msg.UUID}
		for name, value := range msg.Metadata {
			headers[name] = value
		}
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{
			Headers: headers, DeliveryMode: amqp091.Persistent, MessageId: msg.UUID, Body: msg.Payload,
		})
		if err != nil {
			b.Fatal(err)
		}
		pending[i%window] = c
	}
	for _, c := range pending {
		if c != nil && !c.Wait() {
			b.Fatal("not confirmed")
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func benchmarkSend(b *testing.B, url, queue string, window int) {
	p := newPublisher(b, amqp.PublisherConfig{
		AMQP: amqp.DurableQueue(url), Topology: amqp.NoTopology, Window: window,
	})
	if err := p.Connect(b.Context()); err != nil {
		b.Fatal(err)
	}
	msg := benchMessage()
	b.ReportAllocs()
	b.ResetTimer()
	failed := make(chan transport.Result, window)
	pending := make(chan struct{}, window)
	done := func(r transport.Result) {
		if r.Err != nil {
			failed <- r
		}
		<-pending
	}
	for range b.N {
		pending <- struct{}{}
		p.Send(b.Context(), queue, msg, done)
	}
	for range window {
		pending <- struct{}{}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	select {
	case r := <-failed:
		b.Fatal(r.Err)
	default:
	}
}

// BenchmarkConsume compares the subscriber with a plain amqp091 loop that
// acknowledges each message as it comes.
func BenchmarkConsume(b *testing.B) {
	url := testenv.AMQPURL(b)
	for _, inFlight := range []int{100, 1000} {
		b.Run(fmt.Sprintf("in-flight=%d/plain-amqp091", inFlight), func(b *testing.B) {
			queue := benchQueue(b, url, amqp.Quorum)
			benchFill(b, url, queue)
			ch := channel(b, url)
			if err := ch.Qos(inFlight, 0, false); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
			if err != nil {
				b.Fatal(err)
			}
			for range b.N {
				d := <-deliveries
				if err := d.Ack(false); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
		b.Run(fmt.Sprintf("in-flight=%d/boxpair", inFlight), func(b *testing.B) {
			queue := benchQueue(b, url, amqp.Quorum)
			benchFill(b, url, queue)
			s := newSubscriber(b, amqp.SubscriberConfig{
				AMQP: amqp.DurableQueue(url), InFlight: inFlight,
				Key: func(*message.Message) string { return "" },
			})
			b.ReportAllocs()
			b.ResetTimer()
			messages := subscribe(b, s, queue)
			for range b.N {
				(<-messages).Ack()
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

func benchFill(b *testing.B, url, queue string) {
	b.Helper()
	p := newPublisher(b, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url), Topology: amqp.NoTopology})
	msg := benchMessage()
	var c tally
	for range b.N {
		c.send(b.Context(), p, queue, msg)
	}
	c.pending.Wait()
	if c.of(transport.Confirmed) != b.N {
		b.Fatal(&c)
	}
}
