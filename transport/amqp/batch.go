package amqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// maxBatchPayload is the recommended size of all payloads in one call of SendBatch. It keeps such
// batches about as large as gathered batches.
const maxBatchPayload = maxBatchBytes / 2

var _ transport.BatchSender = (*Publisher)(nil)

// BatchLimit implements [transport.BatchSender]. The number of messages is BatchSize.
func (p *Publisher) BatchLimit() (messages, bytes int) {
	return p.config.BatchSize, min(maxBatchPayload, p.config.MaxBody/2)
}

// SendBatch implements [transport.BatchSender]. The batch is Invalid if its messages have different
// routes, if it has more messages than BatchSize, or if it is larger than MaxBody.
func (p *Publisher) SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	if len(msgs) == 1 {
		p.Send(ctx, topic, msgs[0], done)
		return
	}
	out := outgoing{topic: topic, declare: true, msgs: msgs, seq: p.nextSeq(), messages: len(msgs), mayBatch: true}
	used, err := p.encodeBatch(topic, msgs, &out)
	if err != nil {
		done(transport.Result{Outcome: transport.Invalid, Err: err})
		return
	}
	if r := p.send(ctx, &out, done); r != nil {
		done(*r)
	}
	used.release()
}

// encodeBatch encodes msgs as one publishing into out. The body of out.pub is in the returned
// memory.
func (p *Publisher) encodeBatch(topic string, msgs []*message.Message, out *outgoing) (encoded *pooled, err error) {
	defer func() {
		if v := recover(); v != nil { // as in encodeMessage
			encoded, err = nil, fmt.Errorf("encode a batch: %w", panicError(v))
		}
	}()
	if len(msgs) == 0 || len(msgs) > p.config.BatchSize {
		return nil, fmt.Errorf("batch of %d messages: want 1 to BatchSize, %d", len(msgs), p.config.BatchSize)
	}
	whole := pool.Get().(*pooled)
	whole.body = appendBatchStart(whole.body[:0], out.seq)
	for i, msg := range msgs {
		exchange, key := p.destination(topic, msg)
		if i == 0 {
			out.exchange, out.key = exchange, key
		} else if key != out.key || exchange != out.exchange {
			return nil, fmt.Errorf("message %s: its route differs from that of the first message of the batch", shorten(msg.UUID))
		}
		err := p.checkSize("payload", msg.Payload)
		var pub amqp091.Publishing
		var used *pooled
		if err == nil {
			pub, used, err = p.codec.encode(msg, out.seq)
		}
		if err == nil {
			err = checkShort("message ID", pub.MessageId) // of the first message, check repeats this with the other properties
		}
		if err != nil {
			return nil, fmt.Errorf("encode message %s: %w", shorten(msg.UUID), err)
		}
		whole.body = appendBatchEntry(whole.body, pub.MessageId, pub.Body)
		used.release()
		if i == 0 {
			out.pub = pub
		}
	}
	out.pub.Body, out.pub.Headers, out.pub.ContentEncoding = whole.body, nil, batchEncoding
	return whole, nil
}

const (
	// gatherAbove is the number of unanswered AMQP messages from which on messages are gathered.
	// With fewer, the broker is idle, and a message would wait for nothing.
	gatherAbove = 4
	// gatherFor is about how long a message waits for further messages, little more than the time
	// of a confirm. A longer wait would let a queue that answers nothing delay other queues.
	gatherFor = sweepInterval
	// maxBatchBytes is the largest body of a gathered batch. A frame of RabbitMQ's default size can
	// hold the body.
	maxBatchBytes = 120 << 10
	// maxPooledBatches is how many bodies are kept for later batches.
	maxPooledBatches = 16
)

// packet is an AMQP message that was published; the broker answers each packet once.
type packet struct {
	seq      string
	exchange string
	key      string
	confirm  *amqp091.DeferredConfirmation
	returned *amqp091.Return
	slots    int // slots that are not released
}

// pendingPackets are the packets that are to be published on a channel.
type pendingPackets struct {
	byRoute map[destination]*pendingPacket
	order   []*pendingPacket // oldest first
}

// destination is the exchange and routing key of an AMQP message.
type destination struct{ exchange, key string }

// pendingPacket is a packet that is not published yet: messages are gathered into it.
type pendingPacket struct {
	to       destination
	pub      amqp091.Publishing // of the first message; its body and headers are dropped
	seq      string
	slots    []*slot
	messages int
	since    time.Time
	body     []byte
	first    int // the offset of the first message's envelope in body
}

// has tells whether a pending packet has the destination of out, which must not overtake it.
func (g *pendingPackets) has(out *outgoing) bool {
	return len(g.order) > 0 && g.byRoute[destination{out.exchange, out.key}] != nil
}

func (g *pendingPackets) remove(b *pendingPacket) {
	delete(g.byRoute, b.to)
	i := slices.Index(g.order, b)
	g.order = slices.Delete(g.order, i, i+1)
}

// packets gathers a publisher's messages in packets, and publishes these.
type packets struct {
	*Publisher

	free []*pendingPacket // for reuse
}

// gather adds out to the pending packet of its destination, and publishes the packet when it is
// full. It returns false, and leaves out alone, when the channel cannot go on. Called with mu
// locked.
func (pk *packets) gather(ctx context.Context, c *confirmChannel, out *outgoing, done func(transport.Result)) bool {
	g := &c.pending
	to := destination{out.exchange, out.key}
	b := g.byRoute[to]
	if b != nil && !pk.fits(b, out) {
		if !pk.publish(c, b) {
			return false
		}
		b = nil
	}
	if b == nil {
		b = pk.newPending(to, out)
		if g.byRoute == nil {
			g.byRoute = make(map[destination]*pendingPacket)
		}
		g.byRoute[to] = b
		g.order = append(g.order, b)
		if len(g.order) == 1 {
			pk.judge.wakeUp()
		}
	}
	b.add(out)
	b.slots = append(b.slots, pk.slots.newSlot(ctx, out, done))
	if b.messages < pk.config.BatchSize && len(b.body) < maxBatchBytes {
		return true
	}
	// If this fails, out is judged with the other messages of the packet.
	pk.publish(c, b)
	return true
}

func (pk *packets) fits(b *pendingPacket, out *outgoing) bool {
	return b.messages+out.messages <= pk.config.BatchSize &&
		len(b.body)+3*len(out.pub.MessageId)+len(out.pub.Body)+len(" 123456789\n") <= min(maxBatchBytes, pk.config.MaxBody)
}

func (pk *packets) newPending(to destination, out *outgoing) *pendingPacket {
	var b *pendingPacket
	if n := len(pk.free); n > 0 {
		b, pk.free = pk.free[n-1], pk.free[:n-1]
	} else {
		b = &pendingPacket{}
	}
	*b = pendingPacket{to: to, pub: out.pub, seq: out.seq, since: time.Now(), slots: b.slots[:0], body: appendBatchStart(b.body[:0], out.seq)}
	b.pub.Body, b.pub.Headers = nil, nil // their memory is reused; an envelope has no headers
	return b
}

// add adds the messages of out to the body of b.
func (b *pendingPacket) add(out *outgoing) {
	if out.messages > 1 {
		b.body = append(b.body, out.pub.Body[entriesOffset(out.pub.Body):]...)
	} else {
		b.body = appendBatchEntry(b.body, out.pub.MessageId, out.pub.Body)
		if b.messages == 0 {
			b.first = len(b.body) - len(out.pub.Body)
		}
	}
	b.messages += out.messages
}

// publish publishes b and removes it from the pending packets of c. It returns false if the
// channel cannot go on. Called with mu locked.
func (pk *packets) publish(c *confirmChannel, b *pendingPacket) bool {
	pub := b.pub
	pub.Body = b.body
	if b.messages > 1 {
		pub.ContentEncoding = batchEncoding
	} else {
		pub.Body = b.body[b.first:]
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(b.to.exchange, b.to.key, true, false, pub)
	switch {
	case errors.Is(err, amqp091.ErrClosed): // the judge will notice the end
		if pk.current == c {
			pk.current = nil
		}
		return false
	case err != nil:
		pk.fail(c, fmt.Errorf("publish: %w", err))
		return false
	}
	c.pending.remove(b)
	in := &packet{seq: b.seq, exchange: b.to.exchange, key: b.to.key, confirm: confirm}
	now := time.Now()
	for _, s := range b.slots {
		s.in, s.written = in, now
		pk.slots.addUnconfirmed(c, s)
	}
	c.packets++
	pk.recycle(b)
	return true
}

func (pk *packets) recycle(b *pendingPacket) {
	clear(b.slots)
	if len(pk.free) < maxPooledBatches && cap(b.body) <= 2*maxBatchBytes {
		pk.free = append(pk.free, b)
	}
}

// publishDue publishes pending packets, oldest first, as long as few packets are unanswered, the
// oldest has waited long enough, or the publisher is closing. Called with mu locked.
func (pk *packets) publishDue(c *confirmChannel) {
	for len(c.pending.order) > 0 && pk.blocked == "" {
		b := c.pending.order[0]
		if !slices.ContainsFunc(b.slots, func(s *slot) bool { return s.done != nil }) { // all were given up while the broker blocked the connection
			c.pending.remove(b)
			_ = pk.drop(c, b, nil, nil)
			pk.broadcast() // a caller may wait for the bytes of the packet
			continue
		}
		if c.packets >= gatherAbove && !pk.closed && time.Since(b.since) < gatherFor || !pk.publish(c, b) {
			return
		}
	}
}

// end reports the messages that were gathered for c, which is closed. If c ended with an
// exception, which must be the fault of a published message, the pending messages become suspects
// for the next channel instead. Called with mu locked.
func (pk *packets) end(c *confirmChannel, judged []judgement) []judgement {
	cause := c.failure
	if cause == nil {
		cause = errNotConnected
	}
	for _, b := range c.pending.order {
		if isException(c.failure) {
			pk.suspect(b)
		}
		judged = pk.drop(c, b, cause, judged)
	}
	c.pending = pendingPackets{}
	return judged
}

// suspect moves the messages of b that were not reported to the end of the suspects. b was
// removed from the pending packets.
func (pk *packets) suspect(b *pendingPacket) {
	b.slots = slices.DeleteFunc(b.slots, func(s *slot) bool {
		if s.done == nil {
			return false
		}
		s.own = packet{exchange: b.to.exchange, key: b.to.key}
		s.in = &s.own
		pk.suspects.list = append(pk.suspects.list, s)
		return true
	})
}

// drop reports the messages of b that were not reported, and recycles b, which was removed
// from the pending packets.
func (pk *packets) drop(c *confirmChannel, b *pendingPacket, cause error, judged []judgement) []judgement {
	for _, s := range b.slots {
		if s.done != nil {
			judged = append(judged, judgement{s.done, *unavailable(fmt.Errorf("connection lost before the message was published: %w", cause))})
		} else {
			c.abandoned--
		}
		pk.slots.drop(s)
	}
	pk.recycle(b)
	return judged
}
