package amqp

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

const (
	// envelopeEncoding is the content-encoding property of a message whose body is an envelope: a
	// line with the metadata as a URL query, which is readable by eye and in any language, then the
	// payload.
	envelopeEncoding = "boxpair"
	// foreignName precedes names without transport.ReservedPrefix. It also precedes the full name
	// if a reserved name without its prefix would begin with foreignName.
	foreignName = "_"
	// envelopeStart begins the line.
	envelopeStart = "publish-seq="
)

var errEncoding = errors.New("content-encoding is unknown to this version")

// isOwnEncoding tells whether encoding belongs to this library, in any version.
func isOwnEncoding(encoding string) bool { return strings.HasPrefix(encoding, envelopeEncoding) }

var errEnvelope = errors.New("first line of the envelope is not a URL query of names and values")

// appendEnvelope appends the envelope of msg to body, with the number of the publish. It omits the
// number of an earlier publish, and the header called without. Metadata has the limits of headers,
// so that it can be sent on in headers.
func appendEnvelope(body []byte, msg *message.Message, seq, without string) ([]byte, error) {
	var stack [24]string
	names, size := stack[:0], len(envelopeStart)+len(seq)
	for name, value := range msg.Metadata {
		if name == seqHeader || name == without {
			continue
		}
		if len(name) > maxShortString {
			return body, fmt.Errorf("header %q…: name of %d bytes, more than %d", name[:32], len(name), maxShortString)
		}
		names = append(names, name)
		size += len("&=") + len(name) + len(value)
	}
	if len(names) > maxHeaders {
		return body, fmt.Errorf("headers: %d of them, more than %d", len(names), maxHeaders)
	}
	if size > maxHeaderBytes {
		return body, fmt.Errorf("headers: %d bytes, more than %d", size, maxHeaderBytes)
	}
	slices.Sort(names)
	body = slices.Grow(body, size+size/8+len(msg.Payload))
	body = append(append(body, envelopeStart...), seq...)
	for _, name := range names {
		body = append(body, '&')
		short, reserved := strings.CutPrefix(name, transport.ReservedPrefix)
		if !reserved || strings.HasPrefix(short, foreignName) {
			body = append(body, foreignName...)
			short = name
		}
		body = append(appendEscaped(body, short), '=')
		body = appendEscaped(body, msg.Metadata[name])
	}
	return append(append(body, '\n'), msg.Payload...), nil
}

// appendEscaped escapes less than url.QueryEscape, for readability.
func appendEscaped(text []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; unescaped[c] {
			text = append(text, c)
		} else {
			text = append(text, '%', hex[c>>4], hex[c&15])
		}
	}
	return text
}

var unescaped = func() (set [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:/@,!$*()'") {
		set[c] = true
	}
	return set
}()

// parseEnvelope calls each with the metadata in body, and returns the payload. On an error it makes
// no call.
func parseEnvelope(body []byte, each func(name, value string)) ([]byte, error) {
	line, payload, ok := bytes.Cut(body, []byte{'\n'})
	if !ok || bytes.Count(line, []byte{'&'}) > maxHeaders {
		return nil, errEnvelope
	}
	text := string(line)
	for pair := range strings.SplitSeq(text, "&") {
		if !strings.Contains(pair, "=") || !isEscaped(pair) {
			return nil, errEnvelope
		}
	}
	for pair := range strings.SplitSeq(text, "&") {
		name, value, _ := strings.Cut(pair, "=")
		name = unescape(name)
		if foreign, ok := strings.CutPrefix(name, foreignName); ok {
			name = foreign
		} else {
			name = fullName(name)
		}
		each(name, unescape(value))
	}
	return payload, nil
}

// fullName returns the metadata name for a short name, without allocating for names of the
// contract.
func fullName(short string) string {
	if name, ok := fullNames[short]; ok {
		return name
	}
	return transport.ReservedPrefix + short
}

var fullNames = func() map[string]string {
	names := make(map[string]string)
	for _, name := range []string{
		transport.MetaKey, transport.MetaType, transport.MetaProducer, transport.MetaSource, transport.MetaVersion, transport.MetaIndex,
		transport.MetaSchemaVersion, transport.MetaContentType, transport.MetaDigest, transport.MetaStamp,
		transport.MetaResendUntil, transport.MetaSigned, transport.MetaSignature, seqHeader,
	} {
		names[strings.TrimPrefix(name, transport.ReservedPrefix)] = name
	}
	return names
}()

// isEscaped tells whether each percent sign is followed by two hexadecimal digits.
func isEscaped(s string) bool {
	for {
		_, after, found := strings.Cut(s, "%")
		if !found {
			return true
		}
		if len(after) < 2 || !isHex(after[0]) || !isHex(after[1]) {
			return false
		}
		s = after[2:]
	}
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// unescape decodes a text for which isEscaped is true.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s
	}
	text, _ := url.QueryUnescape(s)
	return text
}

// asPlain returns d in a form that a marshaler without knowledge of envelopes can read: d itself,
// or a copy with the headers and properties of a message without envelope.
func asPlain(d *amqp091.Delivery) (*amqp091.Delivery, error) {
	switch d.ContentEncoding {
	case envelopeEncoding:
	case batchEncoding:
		return nil, errBatch
	default:
		if isOwnEncoding(d.ContentEncoding) {
			return nil, errEncoding
		}
		return unbrief(d), nil
	}
	headers := make(amqp091.Table)
	for name, value := range d.Headers {
		if value != nil {
			headers[name] = value
		}
	}
	if headers[wamqp.DefaultMessageUUIDHeaderKey] == nil {
		headers[wamqp.DefaultMessageUUIDHeaderKey] = d.MessageId
	}
	payload, err := parseEnvelope(d.Body, func(name, value string) {
		if headers[name] == nil {
			headers[name] = value
		}
	})
	if err != nil {
		return nil, err
	}
	open := *d
	open.Headers, open.Body, open.ContentEncoding = headers, payload, ""
	open.Type, _ = headers[transport.MetaType].(string)
	open.ContentType, _ = headers[transport.MetaContentType].(string)
	return &open, nil
}

// unreadable is the value of transport.MetaEnvelope for an envelope that cannot be opened.
const unreadable = "unreadable"

// seqOf returns the number of the publish that was returned, or "".
func seqOf(r *amqp091.Return) string {
	if seq := seqIn(r.Headers); seq != "" {
		return seq
	}
	rest, ok := bytes.CutPrefix(r.Body, []byte(envelopeStart))
	if !ok || r.ContentEncoding != envelopeEncoding && r.ContentEncoding != batchEncoding {
		return ""
	}
	if end := bytes.IndexAny(rest[:min(len(rest), maxSeq+1)], "&\n"); end >= 0 {
		return string(rest[:end])
	}
	return ""
}

// maxSeq is the largest number of digits in the number of a publish.
const maxSeq = 20
