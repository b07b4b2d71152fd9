package consumer

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// outageDetector tells an outage of the database from a message that breaks its own transactions.
// All messages of an inbox share one. The zero value is ready.
type outageDetector struct {
	mu        sync.Mutex
	successes int64
	last      messageRef // the message of the latest error
	lastAt    time.Time  // the time of the latest error
	otherAt   time.Time  // the time of the latest error of any other message
	blames    map[messageRef]blame
}

// messageRef identifies a message of one consumer.
type messageRef struct {
	consumer string
	id       uuid.UUID
}

// blame counts the errors that a message has caused itself.
type blame struct {
	count     int
	successes int64 // of all messages, at the latest error of this one
}

// success notes that a transaction of s was committed.
func (w *outageDetector) success(s messageRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.successes++
	delete(w.blames, s)
}

// databaseError notes an error of s that may be the database's fault.
func (w *outageDetector) databaseError(s messageRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s != w.last {
		w.last, w.otherAt = s, w.lastAt
	}
	w.lastAt = time.Now()
}

// blame judges one more error of s, and tells whether s has caused enough errors for them to count
// as a failed attempt. s has caused an error if another message succeeded since the previous error
// of s, or if no other message failed lately. Otherwise an outage has caused it.
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
	if w.blames == nil || len(w.blames) >= maxBlames { // a lost count costs a few more tries
		w.blames = make(map[messageRef]blame)
	}
	w.blames[s] = b
	return false
}

// othersFail tells whether a message other than s had an error lately. The caller holds mu.
func (w *outageDetector) othersFail(s messageRef) bool {
	at := w.lastAt
	if s == w.last {
		at = w.otherAt
	}
	return !at.IsZero() && time.Since(at) < outageMemory
}
