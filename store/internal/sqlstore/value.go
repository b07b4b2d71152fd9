package sqlstore

import (
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/boxpair/boxpair/transport"
)

// Micros returns d in microseconds, the unit of time columns.
func Micros(d time.Duration) int64 { return d.Microseconds() }

// Instant returns the time in a column of microseconds since 1970, in UTC.
func Instant(us int64) time.Time { return time.UnixMicro(us).UTC() }

// Optional returns the time in a column that may be NULL; NULL is the zero time.
func Optional(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return Instant(us.Int64)
}

// Stamp returns t for a column that may be NULL; the zero time is NULL.
func Stamp(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}

// dueIn returns a delay in microseconds; a negative delay becomes 0.
func dueIn(d time.Duration) sql.NullInt64 {
	return sql.NullInt64{Int64: Micros(max(0, d)), Valid: true}
}

// elapsed returns a column of microseconds as a duration; NULL is 0.
func elapsed(us sql.NullInt64) time.Duration { return time.Duration(us.Int64) * time.Microsecond }

// Digest returns the digest in a column.
func Digest(b []byte) (d transport.Digest) {
	copy(d[:], b)
	return d
}

// Bytes returns b for a column that must not be NULL; nil becomes empty.
func Bytes(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// optionalBytes returns b for a column that may be NULL; nil is NULL.
func optionalBytes(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// names returns states as a list of strings.
func names[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = string(list[i])
	}
	return out
}

// encodeHeaders returns headers as JSON. It refuses headers that are not valid UTF-8, which JSON
// cannot hold.
func encodeHeaders(headers map[string]string) (string, error) {
	if len(headers) == 0 {
		return "{}", nil
	}
	for name, value := range headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return "", errors.New("headers are not valid UTF-8")
		}
	}
	text, err := json.Marshal(headers)
	return string(text), err
}

// encodeMetadata returns names and values, each behind its length, so that both may hold any bytes.
// It returns nil for empty metadata.
func encodeMetadata(metadata map[string]string) []byte {
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		for _, text := range []string{name, metadata[name]} {
			out = binary.AppendUvarint(out, uint64(len(text)))
			out = append(out, text...)
		}
	}
	return out
}

func decodeMetadata(b []byte) (map[string]string, error) {
	metadata := make(map[string]string)
	next := func() (string, error) {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return "", errors.New("metadata is cut off")
		}
		text := string(b[size : size+int(n)])
		b = b[size+int(n):]
		return text, nil
	}
	for len(b) > 0 {
		name, err := next()
		if err != nil {
			return nil, err
		}
		if metadata[name], err = next(); err != nil {
			return nil, err
		}
	}
	return metadata, nil
}
