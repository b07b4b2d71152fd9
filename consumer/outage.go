package consumer

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// outageDetector knows how the database treats the messages of an inbox, so that a
// message that breaks its own transactions can be told from an outage. The zero
// value is ready.
type outageDetector struct {
	mu        sync.Mutex
	successes int64
	last      messageRef // of which message the last error was,
	lastAt    time.Time  // when,
	otherAt   time.Time  // and when the last one was of any other message
	blames    map[messageRef]blame
}

// messageRef is a message of one consumer.
type messageRef struct {
	consumer string
	id       uuid.UUID
}

// blame is what a message has to answer for so far.
type blame struct {
	count     int
	successes int64 // of all, at its last error
}

// success notes a transaction of s that was committed.
func (w *outageDetector) success(s messageRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.successes++
	delete(w.blames, s)
}

// databaseError notes an error of s that may be the database's.
func (w *outageDetector) databaseError(s messageRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s != w.last {
		w.last, w.otherAt = s, w.lastAt
	}
	w.lastAt = time.Now()
}

// blame judges one more error of s, and tells whether it has had so many of its
// own that they are an attempt. An error is its own if another message succeeded
// since its last one. Otherwise it is an outage's if another message failed
// lately, and its own if there is none to tell.
func (w *outageDetector) blame(s messageRef) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, begun := w.blames[s]
	healthy := begun && w.successes != b.successes
	b.successes = w.successes
	if healthy || !w.othersFail(s) {
		b.count++
	}
	if b.count >= databaseErrorLimit {
		delete(w.blames, s)
		return true
	}
	if w.blames == nil || len(w.blames) >= maxBlames { // to begin anew costs a few more tries
		w.blames = make(map[messageRef]blame)
	}
	w.blames[s] = b
	return false
}

// othersFail tells whether an error of another message than s was noted lately.
// The caller holds mu.
func (w *outageDetector) othersFail(s messageRef) bool {
	at := w.lastAt
	if s == w.last {
		at = w.otherAt
	}
	return !at.IsZero() && time.Since(at) < outageMemory
}
