package dedupe

import (
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/boxpair/boxpair/transport"
)

// DefaultSize is how many dispatch IDs a [Window] holds by default.
const DefaultSize = 1 << 16

// Verdict is what a [Window] knows of a message.
type Verdict uint8

// The verdicts. Only [Duplicate] may be acted upon without the database.
const (
	// Miss: nothing is known. The database decides.
	Miss Verdict = iota
	// Duplicate: the dispatch ID was dealt with, and the content is the same as far
	// as both copies say.
	Duplicate
	// Altered: the dispatch ID was dealt with when it had other content.
	Altered
)

// String returns the name of v in lower case.
func (v Verdict) String() string {
	names := [...]string{"miss", "duplicate", "altered"}
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Term is a time during which a [Window] forgets nothing but the oldest.
type Term uint64

// entry carries its term: a late Add of an earlier term needs no lock to be
// told from a valid one.
type entry struct {
	digest transport.Digest
	term   Term
}

// Window is a bounded memory of dispatch IDs. It is safe for concurrent use,
// and starts no goroutine.
type Window struct {
	cache *lru.Cache[uuid.UUID, entry]
	term  atomic.Uint64
}

// New returns a window that holds at most size dispatch IDs. A size of 0 means
// [DefaultSize]; a negative one is refused.
func New(size int) (*Window, error) {
	if size < 0 {
		return nil, fmt.Errorf("size of a window: %d is negative", size)
	}
	if size == 0 {
		size = DefaultSize
	}
	cache, err := lru.New[uuid.UUID, entry](size)
	if err != nil {
		return nil, fmt.Errorf("make a window: %w", err)
	}
	return &Window{cache: cache}, nil
}

// Seen tells what is known of the dispatch ID with that digest of its content. A
// zero digest says nothing about the content and matches any. What is
// found counts as recently used.
func (w *Window) Seen(id uuid.UUID, digest transport.Digest) Verdict {
	e, ok := w.cache.Get(id)
	switch {
	case !ok || e.term != w.Term():
		return Miss
	case e.digest.Matches(digest):
		return Duplicate
	default:
		return Altered
	}
}

// Term returns the present term. Whoever will call [Window.Add] reads it before
// the transaction begins.
func (w *Window) Term() Term { return Term(w.term.Load()) }

// Add remembers a dispatch ID whose claim is known to be committed, with the
// digest that was committed with it. When the window is full, what was not used
// for the longest time is forgotten. If a new term has begun since term, what is
// added is never seen.
func (w *Window) Add(term Term, id uuid.UUID, digest transport.Digest) {
	w.cache.Add(id, entry{digest: digest, term: term})
}

// Forget forgets everything and begins a new term.
func (w *Window) Forget() {
	w.term.Add(1)
	w.cache.Purge()
}

// Len returns how many dispatch IDs are held.
func (w *Window) Len() int { return w.cache.Len() }
