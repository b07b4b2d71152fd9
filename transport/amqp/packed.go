package amqp

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// packedHeader holds the metadata whose names begin with transport.ReservedPrefix, without it, as a URL query: by eye and
// in any language it can be read.
const packedHeader = transport.MetaPacked

// maxPairs is how many names are packed, and unpacked. The contract has a dozen; other messages may have what they like.
const maxPairs = 256

var errPacked = errors.New("header " + packedHeader + " is not a URL query of names and values")

// pack returns the value of packedHeader for meta, in the order of the names, with the number of the publish. It is ""
// for what could not be unpacked.
func pack(meta message.Metadata, seq string) string {
	if _, packed := meta[packedHeader]; packed { // by somebody who passes a message on as it came
		meta = maps.Clone(meta)
		_ = unpack(meta)
	}
	var names [16]string // on the stack
	packed, size := names[:0], len(seqHeader)+len(seq)
	for name, value := range meta {
		if strings.HasPrefix(name, transport.ReservedPrefix) && name != seqHeader {
			packed = append(packed, name)
			size += len(name) + len(value)
		}
	}
	if len(packed) >= maxPairs || slices.ContainsFunc(packed, func(name string) bool { return len(name) > maxShortString }) {
		return ""
	}
	slices.Sort(packed)
	text := make([]byte, 0, size+64)
	for _, name := range packed {
		text = append(appendPair(text, name, meta[name]), '&')
	}
	return string(appendPair(text, seqHeader, seq))
}

func appendPair(text []byte, name, value string) []byte {
	return appendEscaped(append(appendEscaped(text, name[len(transport.ReservedPrefix):]), '='), value)
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

// unpack replaces packedHeader in meta by what it holds. What meta has besides stays as it is. If it is not there, or
// cannot be read, nothing is changed.
func unpack(meta message.Metadata) error {
	text, ok := meta[packedHeader]
	if !ok {
		return nil
	}
	if err := eachPair(text, func(_, _ string) {}); err != nil {
		return err
	}
	delete(meta, packedHeader)
	return eachPair(text, func(name, value string) {
		if _, there := meta[name]; !there {
			meta[name] = value
		}
	})
}

// unpackHeaders does so for a marshaler that knows nothing of it.
func unpackHeaders(d *amqp091.Delivery) {
	packed, ok := d.Headers[packedHeader].(string)
	if !ok {
		return
	}
	meta := message.Metadata{packedHeader: packed}
	if unpack(meta) != nil {
		return
	}
	delete(d.Headers, packedHeader)
	for name, value := range meta {
		if _, there := d.Headers[name]; !there {
			d.Headers[name] = value
		}
	}
}

func eachPair(text string, do func(name, value string)) error {
	for n := 0; text != ""; n++ {
		var pair string
		pair, text, _ = strings.Cut(text, "&")
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return errPacked
		}
		name, errName := unescape(name)
		value, errValue := unescape(value)
		if errName != nil || errValue != nil || n == maxPairs || len(transport.ReservedPrefix+name) > maxShortString {
			return errPacked
		}
		do(transport.ReservedPrefix+name, value)
	}
	return nil
}

func unescape(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, nil
	}
	return url.QueryUnescape(s)
}
