package amqp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// batchEncoding is the content-encoding property of a message that carries several. Its body is a
// line with the number of the publish, and behind it each of them: a line with its ID, escaped as
// in an envelope, a blank and the length of its envelope in bytes, and then the envelope.
const batchEncoding = "boxpair-batch"

// maxBatch is how many messages a batch may have.
const maxBatch = 1000

var errBatch = errors.New("batch is not made of IDs, lengths and envelopes")

// appendBatchStart begins the body of a batch.
func appendBatchStart(body []byte, seq string) []byte {
	return append(append(append(body, envelopeStart...), seq...), '\n')
}

// batchStart returns where the parts of a batch begin.
func batchStart(body []byte) int { return bytes.IndexByte(body, '\n') + 1 }

// appendPart appends a message to the body of a batch.
func appendPart(body []byte, id string, envelope []byte) []byte {
	body = append(appendEscaped(body, id), ' ')
	body = append(strconv.AppendInt(body, int64(len(envelope)), 10), '\n')
	return append(body, envelope...)
}

// part is one message of a batch.
type part struct {
	id       string
	envelope []byte // shares the memory of the batch
}

// splitBatch returns what is in the body of a batch, or nothing if it cannot be read to its end.
func splitBatch(body []byte) ([]part, error) {
	_, rest, ok := bytes.Cut(body, []byte{'\n'})
	if !ok || !bytes.HasPrefix(body, []byte(envelopeStart)) {
		return nil, errBatch
	}
	var parts []part
	for len(rest) > 0 {
		line, after, ok := bytes.Cut(rest, []byte{'\n'})
		id, length, found := bytes.Cut(line, []byte{' '})
		n, err := strconv.ParseUint(string(length), 10, 31)
		if len(parts) == maxBatch || !ok || !found || err != nil || n > uint64(len(after)) || !isEscaped(string(id)) {
			return nil, errBatch
		}
		parts = append(parts, part{unescape(string(id)), after[:n:n]})
		rest = after[n:]
	}
	if len(parts) == 0 {
		return nil, errBatch
	}
	return parts, nil
}

// payloadsOfBatch is what the payloads of a call of SendBatch should have together, so that a batch
// is not much larger than others.
const payloadsOfBatch = maxBatchBytes / 2

var _ transport.BatchSender = (*Publisher)(nil)

// BatchLimit implements [transport.BatchSender]. It is BatchSize messages.
func (p *Publisher) BatchLimit() (messages, bytes int) {
	return p.config.BatchSize, min(payloadsOfBatch, p.config.MaxBody/2)
}

// SendBatch implements [transport.BatchSender]. Messages of more than one route are Invalid; so are
// several that are larger than MaxBody together, and any if BatchSize does not allow as many.
func (p *Publisher) SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	if len(msgs) == 1 {
		p.Send(ctx, topic, msgs[0], done)
		return
	}
	out := outgoing{topic: topic, declare: true, msgs: msgs, seq: p.nextSeq(), messages: len(msgs), gather: true}
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

// encodeBatch has msgs encoded as the one publishing of out. Its body is that of the parts.
func (p *Publisher) encodeBatch(topic string, msgs []*message.Message, out *outgoing) (encoded *parts, err error) {
	defer func() {
		if v := recover(); v != nil { // as for one message
			encoded, err = nil, fmt.Errorf("encode a batch: %w", panicked(v))
		}
	}()
	if len(msgs) == 0 || len(msgs) > p.config.BatchSize {
		return nil, fmt.Errorf("batch of %d messages, of which BatchSize allows %d", len(msgs), p.config.BatchSize)
	}
	whole := someParts.Get().(*parts)
	whole.body = appendBatchStart(whole.body[:0], out.seq)
	for i, msg := range msgs {
		exchange, key := p.destination(topic, msg)
		if i == 0 {
			out.exchange, out.key = exchange, key
		} else if key != out.key || exchange != out.exchange {
			return nil, fmt.Errorf("message %s: another route than that of the first one of its batch", shorten(msg.UUID))
		}
		err := p.checkSize("payload", msg.Payload)
		var pub amqp091.Publishing
		var used *parts
		if err == nil {
			pub, used, err = p.codec.encode(msg, out.seq)
		}
		if err == nil {
			err = checkShort("message ID", pub.MessageId) // that of the first one is checked as a property, too
		}
		if err != nil {
			return nil, fmt.Errorf("encode message %s: %w", shorten(msg.UUID), err)
		}
		whole.body = appendPart(whole.body, pub.MessageId, pub.Body)
		used.release()
		if i == 0 {
			out.pub = pub
		}
	}
	out.pub.Body, out.pub.Headers, out.pub.ContentEncoding = whole.body, nil, batchEncoding
	return whole, nil
}
