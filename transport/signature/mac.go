package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// alwaysSigned are the names that are signed wherever they occur, without being listed.
var alwaysSigned = map[string]bool{
	transport.MetaKey: true, transport.MetaType: true, transport.MetaProducer: true, transport.MetaSource: true,
	transport.MetaVersion: true, transport.MetaIndex: true, transport.MetaSchemaVersion: true, transport.MetaContentType: true,
	transport.MetaDigest: true, transport.MetaStamp: true, transport.MetaResendUntil: true,
}

// mac returns the MAC of a message and of the given metadata. Its parts are netstrings, so that no
// two messages have the same input.
func (k hiddenKey) mac(topic string, msg *message.Message, metadata message.Metadata) []byte {
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

func splitNames(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range strings.SplitSeq(list, ",") {
			if !yield(unescapeName.Replace(name)) {
				return
			}
		}
	}
}
