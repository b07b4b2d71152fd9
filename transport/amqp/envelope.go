package amqp

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

const (
	// envelopeEncoding is the content-encoding property of a message whose body is an envelope: a line with the metadata as
	// a URL query, which can be read by eye and in any language, and behind it the payload.
	envelopeEncoding = "boxpair"
	// foreignName precedes names that do not begin with transport.ReservedPrefix, and those that would begin with it
	// without that prefix.
	foreignName = "_"
	// envelopeStart is how the line begins.
	envelopeStart = "publish-seq="
)

var errEnvelope = errors.New("first line of the envelope is not a URL query of names and values")

// appendEnvelope appends msg to body, with the number of the publish. A number that msg has from another one, and the header
// without, are left out.
func appendEnvelope(body []byte, msg *message.Message, seq, without string) ([]byte, error) {
	meta := msg.Metadata
	if len(meta) > maxHeaders {
		return nil, fmt.Errorf("headers: %d of them, more than %d", len(meta), maxHeaders)
	}
	var stack [24]string
	names := stack[:0]
	for name := range meta {
		if name != seqHeader && name != without {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	body = append(append(body, envelopeStart...), seq...)
	for _, name := range names {
		body = append(body, '&')
		value := meta[name]
		short, reserved := strings.CutPrefix(name, transport.ReservedPrefix)
		if !reserved || strings.HasPrefix(short, foreignName) {
			body = append(body, foreignName...)
			short = name
		}
		body = append(appendEscaped(body, short), '=')
		body = appendEscaped(body, value)
	}
	return append(append(body, '\n'), msg.Payload...), nil
}

// appendEscaped leaves more as it is than url.QueryEscape, for whoever has to read it.
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

// openEnvelope passes the metadata in body to each, and returns the payload. It passes nothing if it fails.
func openEnvelope(body []byte, each func(name, value string)) ([]byte, error) {
	line, payload, ok := bytes.Cut(body, []byte{'\n'})
	if !ok {
		return nil, errEnvelope
	}
	text := string(line)
	if strings.Count(text, "&") > maxHeaders {
		return nil, errEnvelope
	}
	if err := eachPair(text, func(_, _ string) {}); err != nil {
		return nil, err
	}
	return payload, eachPair(text, each)
}

func eachPair(text string, do func(name, value string)) error {
	for text != "" {
		var pair string
		pair, text, _ = strings.Cut(text, "&")
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return errEnvelope
		}
		name, errName := unescape(name)
		value, errValue := unescape(value)
		if errName != nil || errValue != nil {
			return errEnvelope
		}
		if foreign, ok := strings.CutPrefix(name, foreignName); ok {
			name = foreign
		} else {
			name = fullName(name)
		}
		do(name, value)
	}
	return nil
}

// fullName returns the name in the metadata of a short one, without memory for those of the contract.
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

func unescape(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, nil
	}
	return url.QueryUnescape(s)
}

// opened returns d as a marshaler that knows nothing of envelopes can read it: itself, or a copy with headers.
func opened(d *amqp091.Delivery) *amqp091.Delivery {
	if d.ContentEncoding != envelopeEncoding {
		return d
	}
	open := *d
	open.Headers = maps.Clone(d.Headers)
	if open.Headers == nil {
		open.Headers = make(amqp091.Table)
	}
	payload, err := openEnvelope(d.Body, func(name, value string) {
		if _, there := open.Headers[name]; !there {
			open.Headers[name] = value
		}
	})
	if err != nil {
		open.Headers[transport.MetaEnvelope] = unreadable
		return &open
	}
	open.Body, open.ContentEncoding = payload, ""
	open.ContentType, _ = open.Headers[transport.MetaContentType].(string)
	return &open
}

// unreadable is what transport.MetaEnvelope says of an envelope that cannot be opened.
const unreadable = "unreadable"

// seqOf returns the number of the publish that was returned.
func seqOf(r *amqp091.Return) string {
	if seq, ok := r.Headers[seqHeader].(string); ok {
		return seq
	}
	if r.ContentEncoding != envelopeEncoding {
		return ""
	}
	rest, _ := bytes.CutPrefix(r.Body, []byte(envelopeStart))
	if end := bytes.IndexAny(rest[:min(len(rest), maxSeq+1)], "&\n"); end >= 0 {
		return string(rest[:end])
	}
	return ""
}

// maxSeq is how many digits the number of a publish has at most.
const maxSeq = 20
