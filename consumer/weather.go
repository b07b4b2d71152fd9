package consumer

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// weather knows how the database treats the messages of an inbox, so that a
// message that breaks its own transactions can be told from an outage. The zero
// value is ready.
type weather struct {
	mu        sync.Mutex
	successes int64
	last      uuid.UUID // of which message the last error was,
	lastAt    time.Time // when,
	otherAt   time.Time // and when the last one was of any other message
}

// blame is what a message has to answer for so far.
type blame struct {
	count     int
	begun     bool  // there was an error before,
	successes int64 // and so many successes then
}

// success notes a transaction that was committed.
func (w *weather) success() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.successes++
}

// trouble notes an error of a message that may be the database's.
func (w *weather) trouble(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id != w.last {
		w.last, w.otherAt = id, w.lastAt
	}
	w.lastAt = time.Now()
}

// blames judges one more error of a message, and tells whether it has had so many
// in a row that they are an attempt. An error is the message's own if another one succeeded
// since its last error. Otherwise it is an outage if another one failed lately, and
// the message's own if there was none to tell.
func (w *weather) blames(id uuid.UUID, b *blame) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	otherAt := w.lastAt
	if id == w.last {
		otherAt = w.otherAt
	}
	healthy := b.begun && w.successes != b.successes
	b.begun, b.successes = true, w.successes
	if !healthy && !otherAt.IsZero() && time.Since(otherAt) < outageMemory {
		b.count = 0
		return false
	}
	b.count++
	if b.count < troublesPerAttempt {
		return false
	}
	b.count = 0
	return true
}
