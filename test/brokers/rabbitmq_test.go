package brokers

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
	"github.com/boxpair/boxpair/transport/transporttest"
)

// rabbit reads what RabbitMQ has. A queue can be read once, so what was read is kept.
type rabbit struct {
	url string

	mu        sync.Mutex
	conn      *amqp091.Connection
	stored    map[string][]*message.Message
	exchanges map[string]bool // to be deleted
}

func newRabbit(t *testing.T) *rabbit {
	t.Helper()
	r := &rabbit{url: testenv.AMQPURL(t), stored: make(map[string][]*message.Message), exchanges: make(map[string]bool)}
	t.Cleanup(func() { ok(t, r.close()) })
	return r
}

// close deletes what is left behind: the broker is shared.
func (r *rabbit) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch, err := r.channel()
	if err != nil {
		return err
	}
	for name := range r.exchanges {
		_, queue := ch.QueueDelete(name, false, false, false)
		err = errors.Join(err, queue, ch.ExchangeDelete(name, false, false))
	}
	return errors.Join(err, r.conn.Close())
}

// config is a durable fanout exchange per topic, to which whoever wants messages binds a queue. The
// broker refuses a message with the metadata "as", since its sender is somebody else.
func (r *rabbit) config(address string) wamqp.Config {
	u, err := url.Parse(r.url)
	if err != nil {
		panic(err)
	}
	u.Host = address
	config := amqp.DurablePubSub(u.String(), "")
	generate := config.Exchange.GenerateName
	config.Exchange.GenerateName = func(topic string) string {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.exchanges[topic] = true
		return generate(topic)
	}
	config.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
		if user, is := p.Headers["as"].(string); is {
			p.UserId = user
		}
		return p
	}}
	return config
}

func badRabbit() *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), nil)
	msg.Metadata["as"] = "somebody else"
	return msg
}

// channel opens a channel; mu is locked.
func (r *rabbit) channel() (*amqp091.Channel, error) {
	if r.conn == nil || r.conn.IsClosed() {
		conn, err := amqp091.Dial(r.url)
		if err != nil {
			return nil, err
		}
		r.conn = conn
	}
	return r.conn.Channel()
}

func (r *rabbit) prepare(_ context.Context, topic string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch, err := r.channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	_, queued := ch.QueueDeclare(topic, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	return errors.Join(ch.ExchangeDeclare(topic, "fanout", true, false, false, false, nil), queued,
		ch.QueueBind(topic, "", topic, false, nil))
}

func (r *rabbit) remove(_ context.Context, topic string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch, err := r.channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	_, err = ch.QueueDelete(topic, false, false, false)
	delete(r.stored, topic)
	return err
}

func (r *rabbit) read(_ context.Context, topic string) ([]*message.Message, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch, err := r.channel()
	if err != nil {
		return nil, err
	}
	defer ch.Close()
	for {
		d, found, err := ch.Get(topic, true)
		var missing *amqp091.Error
		switch {
		case errors.As(err, &missing) && missing.Code == amqp091.NotFound:
			return nil, nil
		case err != nil:
			return nil, err
		case !found:
			return append([]*message.Message(nil), r.stored[topic]...), nil
		}
		r.stored[topic] = append(r.stored[topic], received(&d)...)
	}
}

// received returns the messages that were delivered at once. Headers that are no text are the
// broker's own, which watermill-amqp's marshaler would refuse.
func received(d *amqp091.Delivery) []*message.Message {
	switch d.ContentEncoding {
	case "boxpair":
		return []*message.Message{unwrapped(d.MessageId, d.Body)}
	case "boxpair-batch":
		return unbatched(d.Body)
	}
	msg := message.NewMessage("", d.Body)
	for name, value := range d.Headers {
		if text, is := value.(string); is {
			msg.Metadata[name] = text
		}
	}
	if msg.UUID = msg.Metadata[wamqp.DefaultMessageUUIDHeaderKey]; msg.UUID == "" {
		msg.UUID = d.MessageId
	}
	complete(msg.Metadata, d)
	return []*message.Message{msg}
}

// complete adds to the metadata what the package's documentation says is no header.
func complete(meta message.Metadata, d *amqp091.Delivery) {
	parts := strings.Split(meta[transport.MetaStamp], ";")
	if len(parts) != 3 {
		return
	}
	meta[transport.MetaStamp] = parts[0]
	if seconds, err := time.ParseDuration(parts[1] + "s"); err == nil {
		at, _ := time.Parse(time.RFC3339Nano, parts[0])
		meta[transport.MetaResendUntil] = at.Add(seconds).UTC().Format(time.RFC3339Nano)
	}
	for name, value := range map[string]string{transport.MetaType: d.Type, transport.MetaContentType: d.ContentType, transport.MetaProducer: d.AppId} {
		if value != "" {
			meta[name] = value
		}
	}
	if meta[transport.MetaVersion] != "" && meta[transport.MetaIndex] == "" {
		meta[transport.MetaIndex] = "0"
	}
}

// unbatched reads a batch by what its documentation says.
func unbatched(body []byte) (list []*message.Message) {
	_, rest, _ := bytes.Cut(body, []byte{'\n'})
	for len(rest) > 0 {
		line, after, _ := bytes.Cut(rest, []byte{'\n'})
		id, length, _ := strings.Cut(string(line), " ")
		id, idErr := url.QueryUnescape(id)
		n, err := strconv.Atoi(length)
		if err := errors.Join(idErr, err); err != nil {
			panic(err)
		}
		list = append(list, unwrapped(id, after[:n]))
		rest = after[n:]
	}
	return list
}

// unwrapped reads an envelope by what its documentation says.
func unwrapped(id string, body []byte) *message.Message {
	line, payload, _ := bytes.Cut(body, []byte{'\n'})
	values, err := url.ParseQuery(string(line))
	if err != nil {
		panic(err)
	}
	msg := message.NewMessage(id, payload)
	for name := range values {
		full, foreign := strings.CutPrefix(name, "_")
		if !foreign {
			full = "boxpair-" + name
		}
		msg.Metadata[full] = values.Get(name)
	}
	return msg
}

func (r *rabbit) target(open func(context.Context, string) (message.Publisher, error)) *transporttest.Target {
	u, err := url.Parse(r.url)
	if err != nil {
		panic(err)
	}
	return &transporttest.Target{
		Address: u.Host, Open: open, Prepare: r.prepare, Stored: r.read, Remove: r.remove, Bad: badRabbit,
	}
}

// ours is transport/amqp.
func (r *rabbit) ours() *transporttest.Target {
	return r.target(opener(func(address string) (*amqp.Publisher, error) {
		return amqp.NewPublisher(amqp.PublisherConfig{AMQP: r.config(address), CompetingConsumers: true, ConfirmTimeout: 20 * time.Second})
	}))
}

// enveloped is transport/amqp with envelopes, for which there is no bad message: the broker does
// not see what is in them.
func (r *rabbit) enveloped(batchSize int) *transporttest.Target {
	t := r.target(opener(func(address string) (*amqp.Publisher, error) {
		config := r.config(address)
		config.Marshaler = nil
		return amqp.NewPublisher(amqp.PublisherConfig{AMQP: config, CompetingConsumers: true, Envelope: true, BatchSize: batchSize, ConfirmTimeout: 20 * time.Second})
	}))
	t.Bad = nil
	return t
}

// stock is watermill-amqp as safe as it can be configured.
func (r *rabbit) stock() *transporttest.Target {
	t := r.target(opener(func(address string) (*wamqp.Publisher, error) {
		config := r.config(address)
		config.Publish.ConfirmDelivery = true
		config.Publish.Mandatory = true
		return wamqp.NewPublisher(config, watermill.NopLogger{})
	}))
	t.Bound = time.Minute // nothing ends a call but the heartbeats of the connection
	return t
}
