package signature

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// Signer signs messages with one key. It is safe for concurrent use.
type Signer struct{ key hiddenKey }

// NewSigner returns a signer with key. Its error names the field.
func NewSigner(key Key) (*Signer, error) {
	if err := key.validate(); err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	return &Signer{key: key.hidden()}, nil
}

// Sign signs msg for topic, the topic by which its consumers subscribe. The signature covers the
// topic, the UUID, the payload and all metadata, including key, digest and stamp: no covered part may
// change afterwards. Metadata that is added later under another name, such as a trace context, is
// not covered and does no harm. Sign replaces an earlier signature.
func (s *Signer) Sign(topic string, msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	delete(msg.Metadata, transport.MetaSignature)
	delete(msg.Metadata, transport.MetaSigned)
	var listed []string
	for name := range msg.Metadata {
		if !alwaysSigned[name] {
			listed = append(listed, name)
		}
	}
	slices.Sort(listed)
	mac := s.key.mac(topic, msg, msg.Metadata)
	if len(listed) > 0 {
		msg.Metadata[transport.MetaSigned] = joinNames(listed)
	}
	msg.Metadata[transport.MetaSignature] = "1;" + s.key.id + ";" + base64.RawURLEncoding.EncodeToString(mac)
}

// Sender returns a sender that signs each message and passes it on to next. It changes the
// metadata of the messages. If next is a [transport.BatchSender], so is the result.
func (s *Signer) Sender(next transport.Sender) transport.Sender {
	signing := signingSender{Sender: next, signer: s}
	if batches, ok := next.(transport.BatchSender); ok {
		return &signingBatchSender{signingSender: signing, next: batches}
	}
	return &signing
}

type signingSender struct {
	transport.Sender
	signer *Signer
}

// Send implements [transport.Sender].
func (s *signingSender) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	s.signer.Sign(topic, msg)
	s.Sender.Send(ctx, topic, msg, done)
}

// Publish implements [message.Publisher].
func (s *signingSender) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		s.signer.Sign(topic, msg)
	}
	return s.Sender.Publish(topic, messages...)
}

// signingBatchSender is a signingSender before a [transport.BatchSender].
type signingBatchSender struct {
	signingSender
	next transport.BatchSender
}

// SendBatch implements [transport.BatchSender].
func (s *signingBatchSender) SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	for _, msg := range msgs {
		s.signer.Sign(topic, msg)
	}
	s.next.SendBatch(ctx, topic, msgs, done)
}

// BatchLimit implements [transport.BatchSender].
func (s *signingBatchSender) BatchLimit() (messages, bytes int) { return s.next.BatchLimit() }
