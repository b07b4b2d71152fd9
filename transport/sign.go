package transport

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The metadata names of a signed message.
const (
	MetaSignature = "boxpair-signature" // format; ID of the key; HMAC-SHA-256 in base64
	MetaSigned    = "boxpair-signed"    // names of the other metadata that is signed
)

// alwaysSigned are the names that are signed wherever they occur, without being listed.
var alwaysSigned = map[string]bool{
	MetaKey: true, MetaType: true, MetaProducer: true, MetaSource: true, MetaVersion: true, MetaIndex: true, MetaSchemaVersion: true,
	MetaContentType: true, MetaDigest: true, MetaStamp: true, MetaResendUntil: true,
}

// MinSecret is how many bytes a secret has at least.
const MinSecret = 32

// ErrNotVerified is wrapped by the errors of [Verifier.Verify].
var ErrNotVerified = errors.New("message is not verified")

// SigningKey is a secret that those who sign share with those who verify: whoever can verify can
// sign. It is printed without its secret.
type SigningKey struct {
	// ID names the key on the wire: 1 to 64 characters out of letters, digits, ".", "_" and
	// "-". Never use an ID again for another secret.
	ID string
	// Secret is at least 32 bytes, drawn at random and not chosen.
	Secret []byte
}

// String names k without its secret.
func (k SigningKey) String() string { return "signing key " + strconv.Quote(k.ID) }

// GoString is String.
func (k SigningKey) GoString() string { return k.String() }

// LogValue is String.
func (k SigningKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

func (k SigningKey) validate() error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	var errs []error
	if len(k.ID) == 0 || len(k.ID) > 64 || strings.Trim(k.ID, allowed) != "" {
		errs = append(errs, fmt.Errorf("ID: %q is not 1 to 64 letters, digits, dots, underscores and hyphens", k.ID))
	}
	if len(k.Secret) < MinSecret {
		errs = append(errs, fmt.Errorf("Secret: has %d bytes, fewer than %d", len(k.Secret), MinSecret))
	}
	return errors.Join(errs...)
}

// sealed is a key that cannot be printed: fmt calls no methods of unexported fields,
// and shows the address of a function.
type sealed struct {
	id     string
	secret func() []byte
}

func (k SigningKey) sealed() sealed {
	secret := slices.Clone(k.Secret)
	return sealed{id: k.ID, secret: func() []byte { return secret }}
}

// Signer signs messages with one key. It is safe for concurrent use.
type Signer struct{ key sealed }

// NewSigner returns a signer with key. Its error names the field.
func NewSigner(key SigningKey) (*Signer, error) {
	if err := key.validate(); err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	return &Signer{key: key.sealed()}, nil
}

// Sign signs msg as one of topic, the topic by which its consumers subscribe. It covers the topic,
// the UUID, the payload and all metadata, and so key, digest and stamp: nothing of that may change
// afterwards. Metadata that others add later under other names, as a trace context, is not covered
// and does no harm. A signature that msg has is replaced.
func (s *Signer) Sign(topic string, msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	delete(msg.Metadata, MetaSignature)
	delete(msg.Metadata, MetaSigned)
	var listed []string
	for name := range msg.Metadata {
		if !alwaysSigned[name] {
			listed = append(listed, name)
		}
	}
	slices.Sort(listed)
	mac := s.key.mac(topic, msg, msg.Metadata)
	if len(listed) > 0 {
		msg.Metadata[MetaSigned] = joinNames(listed)
	}
	msg.Metadata[MetaSignature] = "1;" + s.key.id + ";" + base64.RawURLEncoding.EncodeToString(mac)
}

// Sender returns a sender that signs what it is given and passes it on to next. The
// messages are changed. If next is a [BatchSender], so is what it returns.
func (s *Signer) Sender(next Sender) Sender {
	signing := signingSender{Sender: next, signer: s}
	if batches, ok := next.(BatchSender); ok {
		return &signingBatchSender{signingSender: signing, next: batches}
	}
	return &signing
}

type signingSender struct {
	Sender
	signer *Signer
}

// Send implements [Sender].
func (s *signingSender) Send(ctx context.Context, topic string, msg *message.Message, done func(Result)) {
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

// signingBatchSender is a signingSender before a [BatchSender].
type signingBatchSender struct {
	signingSender
	next BatchSender
}

// SendBatch implements [BatchSender].
func (s *signingBatchSender) SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(Result)) {
	for _, msg := range msgs {
		s.signer.Sign(topic, msg)
	}
	s.next.SendBatch(ctx, topic, msgs, done)
}

// BatchLimit implements [BatchSender].
func (s *signingBatchSender) BatchLimit() (messages, bytes int) { return s.next.BatchLimit() }

// Verifier tells messages that were signed with one of its keys from all others. It is safe
// for concurrent use.
type Verifier struct{ keys map[string]sealed }

// NewVerifier returns a verifier that accepts each of keys, at least one, so that a key can be
// replaced: first every verifier is given the new one, then the signers; the old one goes when
// nothing that it has signed is under way any more. Its error names the field.
func NewVerifier(keys ...SigningKey) (*Verifier, error) {
	v := &Verifier{keys: make(map[string]sealed, len(keys))}
	var errs []error
	if len(keys) == 0 {
		errs = append(errs, errors.New("there is none"))
	}
	for i, key := range keys {
		if err := key.validate(); err != nil {
			errs = append(errs, fmt.Errorf("key %d: %w", i, err))
		}
		if _, ok := v.keys[key.ID]; ok {
			errs = append(errs, fmt.Errorf("key %d: ID: %q is taken by an earlier one", i, key.ID))
		}
		v.keys[key.ID] = key.sealed()
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("keys to verify with: %w", err)
	}
	return v, nil
}

// Verify checks that msg was signed for topic, and returns its metadata that is signed, without the
// signature: believe no other. For a message that is not signed, or not like this, or not with one
// of the verifier's keys, the error wraps [ErrNotVerified] and says which, without anything of the
// message.
func (v *Verifier) Verify(topic string, msg *message.Message) (message.Metadata, error) {
	signature, ok := msg.Metadata[MetaSignature]
	if !ok {
		return nil, fmt.Errorf("%w: it has no signature", ErrNotVerified)
	}
	format, rest, _ := strings.Cut(signature, ";")
	id, text, _ := strings.Cut(rest, ";")
	claimed, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if format != "1" || err != nil {
		return nil, fmt.Errorf("%w: its signature is of another format", ErrNotVerified)
	}
	key, ok := v.keys[id]
	if !ok {
		return nil, fmt.Errorf("%w: it is signed with a key that is not known here", ErrNotVerified)
	}
	// Earlier versions listed no name that is reserved, and signed all that the message had.
	for _, always := range []func(name string) bool{func(name string) bool { return alwaysSigned[name] }, IsReserved} {
		signed := signedMetadata(msg.Metadata, always)
		if hmac.Equal(claimed, key.mac(topic, msg, signed)) {
			return signed, nil
		}
	}
	return nil, fmt.Errorf("%w: its signature is not that of its content and topic", ErrNotVerified)
}

// signedMetadata returns what a signature is said to cover: what is always signed, and what is
// listed.
func signedMetadata(metadata message.Metadata, always func(name string) bool) message.Metadata {
	signed := make(message.Metadata, len(metadata))
	for name, value := range metadata {
		if always(name) {
			signed[name] = value
		}
	}
	if list, ok := metadata[MetaSigned]; ok {
		for name := range splitNames(list) {
			if value, ok := metadata[name]; ok {
				signed[name] = value
			}
		}
	}
	delete(signed, MetaSignature)
	delete(signed, MetaSigned)
	return signed
}

// mac covers its parts as netstrings, so that no two messages are covered alike.
func (k sealed) mac(topic string, msg *message.Message, metadata message.Metadata) []byte {
	h := hmac.New(sha256.New, k.secret())
	buf := make([]byte, 0, 256)
	part := func(s string) {
		buf = strconv.AppendInt(buf[:0], int64(len(s)), 10)
		buf = append(buf, ':')
		buf = append(buf, s...)
		h.Write(append(buf, ','))
	}
	part("boxpair signature 1")
	part(k.id)
	part(topic)
	part(msg.UUID)
	buf = strconv.AppendInt(buf[:0], int64(len(msg.Payload)), 10)
	h.Write(append(buf, ':'))
	h.Write(msg.Payload)
	h.Write([]byte{','})
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		part(name)
		part(metadata[name])
	}
	return h.Sum(nil)
}

var (
	escapeName   = strings.NewReplacer("%", "%25", ",", "%2C")
	unescapeName = strings.NewReplacer("%25", "%", "%2C", ",")
)

func joinNames(names []string) string {
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = escapeName.Replace(name)
	}
	return strings.Join(escaped, ",")
}

func splitNames(list string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name := range strings.SplitSeq(list, ",") {
			if !yield(unescapeName.Replace(name)) {
				return
			}
		}
	}
}
