package amqp

import (
	"bytes"
	"errors"
	"strconv"
)

// batchEncoding is the content-encoding property of an AMQP message with several messages. Its body
// begins with a line with the number of the publish. Each message follows: a line with its ID,
// escaped as in an envelope, a space and the length of its envelope in bytes, then the envelope.
const batchEncoding = "boxpair-batch"

// maxBatch is the largest number of messages in a batch.
const maxBatch = 1000

var errBatch = errors.New("batch is malformed: want IDs, lengths and envelopes")

// appendBatchStart begins the body of a batch.
func appendBatchStart(body []byte, seq string) []byte {
	return append(append(append(body, envelopeStart...), seq...), '\n')
}

// entriesOffset returns the offset of the first message in the body of a batch.
func entriesOffset(body []byte) int { return bytes.IndexByte(body, '\n') + 1 }

// appendBatchEntry appends a message to the body of a batch.
func appendBatchEntry(body []byte, id string, envelope []byte) []byte {
	body = append(appendEscaped(body, id), ' ')
	body = append(strconv.AppendInt(body, int64(len(envelope)), 10), '\n')
	return append(body, envelope...)
}

// batchEntry is one message of a batch.
type batchEntry struct {
	id       string
	envelope []byte // shares the memory of the batch's body
}

// parseBatch returns the messages in the body of a batch, or an error if any part of the body
// cannot be parsed.
func parseBatch(body []byte) ([]batchEntry, error) {
	_, rest, ok := bytes.Cut(body, []byte{'\n'})
	if !ok || !bytes.HasPrefix(body, []byte(envelopeStart)) {
		return nil, errBatch
	}
	var entries []batchEntry
	for len(rest) > 0 {
		line, after, ok := bytes.Cut(rest, []byte{'\n'})
		id, length, found := bytes.Cut(line, []byte{' '})
		n, err := strconv.ParseUint(string(length), 10, 31)
		if len(entries) == maxBatch || !ok || !found || err != nil || n > uint64(len(after)) || !isEscaped(string(id)) {
			return nil, errBatch
		}
		entries = append(entries, batchEntry{unescape(string(id)), after[:n:n]})
		rest = after[n:]
	}
	if len(entries) == 0 {
		return nil, errBatch
	}
	return entries, nil
}
