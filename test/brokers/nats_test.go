package brokers

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	natspkg "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/boxpair/boxpair/transport/transporttest"
)

// jetStream reads what a nats-server has in its streams.
type jetStream struct {
	*child

	marshaler natspkg.MarshalerUnmarshaler
	js        nats.JetStreamContext
}

// answer is how long a client waits for what JetStream says.
const answer = 10 * time.Second

// options make a client that comes back after any outage.
func options() []nats.Option {
	return []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.Timeout(10 * time.Second)}
}

func newJetStream(t *testing.T, marshaler natspkg.MarshalerUnmarshaler) *jetStream {
	t.Helper()
	j := &jetStream{child: startChild(t, "nats"), marshaler: marshaler}
	conn, err := nats.Connect("nats://"+j.address(), options()...)
	ok(t, err)
	t.Cleanup(conn.Close)
	j.js, err = conn.JetStream(nats.MaxWait(answer))
	ok(t, err)
	return j
}

func (j *jetStream) prepare(_ context.Context, topic string) error {
	_, err := j.js.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: nats.FileStorage})
	return err
}

func (j *jetStream) remove(_ context.Context, topic string) error { return j.js.DeleteStream(topic) }

func (j *jetStream) read(_ context.Context, topic string) ([]*message.Message, error) {
	info, err := j.js.StreamInfo(topic)
	if errors.Is(err, nats.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var stored []*message.Message
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq && seq > 0; seq++ {
		raw, err := j.js.GetMsg(topic, seq)
		if err != nil {
			return nil, err
		}
		msg, err := j.marshaler.Unmarshal(&nats.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data})
		if err != nil {
			return nil, err
		}
		stored = append(stored, msg)
	}
	return stored, nil
}

// bad is beyond the server's max_payload.
func tooLarge() *message.Message {
	return message.NewMessage(watermill.NewUUID(), bytes.Repeat([]byte("x"), 2<<20))
}

func (j *jetStream) target(open func(context.Context, string) (message.Publisher, error)) *transporttest.Target {
	return &transporttest.Target{
		Address: j.address(), Open: open, Prepare: j.prepare, Stored: j.read, Remove: j.remove, Bad: tooLarge, Restart: j.restart,
	}
}

// stable is the package pkg/nats of watermill-nats, with JetStream.
func (j *jetStream) stable() *transporttest.Target {
	return j.target(opener(func(address string) (*natspkg.Publisher, error) {
		return natspkg.NewPublisher(natspkg.PublisherConfig{
			URL: "nats://" + address, NatsOptions: options(), Marshaler: j.marshaler,
			JetStream: natspkg.JetStreamConfig{ConnectOptions: []nats.JSOpt{nats.MaxWait(answer)}},
		}, watermill.NopLogger{})
	}))
}

// beta is the package pkg/jetstream of watermill-nats.
func (j *jetStream) beta() *transporttest.Target {
	return j.target(opener(func(address string) (*jetstream.Publisher, error) {
		conn, err := nats.Connect("nats://"+address, options()...)
		if err != nil {
			return nil, err
		}
		return jetstream.NewPublisher(jetstream.PublisherConfig{Conn: conn, Logger: watermill.NopLogger{}})
	}))
}
