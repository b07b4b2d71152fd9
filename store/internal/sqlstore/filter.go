package sqlstore

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

const (
	defaultLimit = 100
	// countCap limits counts: reading this many rows takes milliseconds.
	countCap = 100_000
	// maxListed is the largest number of rows that a statement lists.
	maxListed = 1000
)

// where collects conditions and their arguments.
type where struct {
	terms []string
	args  []any
}

func (w *where) add(term string, args ...any) {
	w.terms = append(w.terms, term)
	w.args = append(w.args, args...)
}

// ids adds the condition that column is in list, unless list is empty.
func (w *where) ids(column string, list []uuid.UUID) {
	if len(list) > 0 {
		w.add(column+" IN ?", list)
	}
}

// text adds the condition that column equals s, unless s is empty.
func (w *where) text(column, s string) {
	if s != "" {
		w.add(column+" = ?", Text(s))
	}
}

// during adds the condition since ≤ column < until. A zero time is no bound.
func (w *where) during(column string, since, until time.Time) {
	if !since.IsZero() {
		w.add(column+" >= ?", since.UnixMicro())
	}
	if !until.IsZero() {
		w.add(column+" < ?", until.UnixMicro())
	}
}

// parked adds conditions on the state, the last error and the time of parking of p.
func (w *where) parked(states []string, part string, since, until time.Time) {
	if len(states) > 0 {
		w.add("p.state IN ?", states)
	}
	if part != "" {
		w.add("INSTR(p.last_error, ?) > 0", Text(part))
	}
	w.during("p.parked_at", since, until)
}

// named adds the condition that a message has a key, source or correlation ID.
func (w *where) named(table, name string) {
	w.add("("+table+".{message_key} = ? OR INSTR("+table+".metadata, ?) > 0 OR INSTR("+table+".metadata, ?) > 0)", Text(name),
		encodeMetadata(map[string]string{transport.MetaSource: name}), encodeMetadata(map[string]string{transport.MetaCorrelationID: name}))
}

func (w *where) String() string { return strings.Join(w.terms, " AND ") }

// with returns a copy of w with another condition.
func (w *where) with(term string, args ...any) *where {
	more := &where{terms: slices.Clone(w.terms), args: slices.Clone(w.args)}
	more.add(term, args...)
	return more
}

// and returns the arguments of w, followed by args.
func (w *where) and(args ...any) []any { return append(slices.Clone(w.args), args...) }

func limitOf(n int) int {
	if n <= 0 {
		return defaultLimit
	}
	return n
}
