package dedupe

import (
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/boxpair/boxpair/transport"
)

// DefaultSize is the default size of a [Window], in dispatch IDs.
const DefaultSize = 1 << 16

// Verdict is the answer of a [Window] about a message.
type Verdict uint8

// The verdicts. Only [Duplicate] may be acted upon without the database.
const (
	// Miss: the window does not know the ID. The database decides.
	Miss Verdict = iota
	// Duplicate: the dispatch ID is known, and the digests match. An absent digest matches any.
	Duplicate
	// Altered: the dispatch ID is known with other content.
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

// Term is a period between two calls of [Window.Forget].
type Term uint64

// entry carries its term, so that a late Add of an earlier term is recognised without a lock.
type entry struct {
	digest transport.Digest
	term   Term
}

// Window is a bounded memory of dispatch IDs. It is safe for concurrent use and starts no
// goroutine.
type Window struct {
	cache *lru.Cache[uuid.UUID, entry]
	term  atomic.Uint64
}

// New returns a window for at most size dispatch IDs. A size of 0 means [DefaultSize]; a negative
// size is an error.
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

// Seen looks a dispatch ID up, with the digest of its content. A zero digest matches any content.
// The entry becomes the most recently used.
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

// Term returns the present term. A caller of [Window.Add] reads it before its transaction begins.
func (w *Window) Term() Term { return Term(w.term.Load()) }

// Add remembers a dispatch ID whose claim is known to be committed, with the committed digest. A
// full window forgets its least recently used ID. If a new term has begun since term, Seen ignores
// the added ID.
func (w *Window) Add(term Term, id uuid.UUID, digest transport.Digest) {
	w.cache.Add(id, entry{digest: digest, term: term})
}

// Forget forgets all IDs and begins a new term.
func (w *Window) Forget() {
	w.term.Add(1)
	w.cache.Purge()
}

// Len returns the number of IDs in the window.
func (w *Window) Len() int { return w.cache.Len() }
