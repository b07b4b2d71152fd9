package signature

import (
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// ErrNotVerified is wrapped by the errors of [Verifier.Verify].
var ErrNotVerified = errors.New("message is not verified")

// Verifier accepts messages that were signed with one of its keys, and no other message. It is safe
// for concurrent use.
type Verifier struct{ keys map[string]hiddenKey }

// NewVerifier returns a verifier that accepts each of keys. At least one key is required; several
// let a key be replaced: give every verifier the new key, then the signers, and remove the old key
// when no message that was signed with it is under way any more. The error names the field.
func NewVerifier(keys ...Key) (*Verifier, error) {
	v := &Verifier{keys: make(map[string]hiddenKey, len(keys))}
	var errs []error
	if len(keys) == 0 {
		errs = append(errs, errors.New("no key is given"))
	}
	for i, key := range keys {
		if err := key.validate(); err != nil {
			errs = append(errs, fmt.Errorf("key %d: %w", i, err))
		}
		if _, ok := v.keys[key.ID]; ok {
			errs = append(errs, fmt.Errorf("key %d: ID: an earlier key has the ID %q", i, key.ID))
		}
		v.keys[key.ID] = key.hidden()
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("keys to verify with: %w", err)
	}
	return v, nil
}

// Verify checks that msg was signed for topic, and returns the signed metadata without the
// signature: use no other metadata of msg. The error wraps [ErrNotVerified] and tells whether the
// signature is missing, has another format, names an unknown key, or does not fit. It contains
// nothing of the message.
func (v *Verifier) Verify(topic string, msg *message.Message) (message.Metadata, error) {
	signature, ok := msg.Metadata[transport.MetaSignature]
	if !ok {
		return nil, fmt.Errorf("%w: it has no signature", ErrNotVerified)
	}
	format, rest, _ := strings.Cut(signature, ";")
	id, text, _ := strings.Cut(rest, ";")
	claimed, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if format != "1" || err != nil {
		return nil, fmt.Errorf("%w: its signature has an unknown format", ErrNotVerified)
	}
	key, ok := v.keys[id]
	if !ok {
		return nil, fmt.Errorf("%w: it is signed with a key that this verifier does not have", ErrNotVerified)
	}
	// Earlier versions signed all metadata of the message, and listed no reserved name.
	for _, always := range []func(name string) bool{func(name string) bool { return alwaysSigned[name] }, transport.IsReserved} {
		signed := signedMetadata(msg.Metadata, always)
		if hmac.Equal(claimed, key.mac(topic, msg, signed)) {
			return signed, nil
		}
	}
	return nil, fmt.Errorf("%w: its signature does not fit its content and topic", ErrNotVerified)
}

// signedMetadata returns the metadata that a signature claims to cover: the names for which always
// is true, and the listed names.
func signedMetadata(metadata message.Metadata, always func(name string) bool) message.Metadata {
	signed := make(message.Metadata, len(metadata))
	for name, value := range metadata {
		if always(name) {
			signed[name] = value
		}
	}
	if list, ok := metadata[transport.MetaSigned]; ok {
		for name := range splitNames(list) {
			if value, ok := metadata[name]; ok {
				signed[name] = value
			}
		}
	}
	delete(signed, transport.MetaSignature)
	delete(signed, transport.MetaSigned)
	return signed
}
