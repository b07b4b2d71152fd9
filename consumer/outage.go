package consumer

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// outageDetector tells an outage of the database from a message that breaks its own transactions.
// All messages of an inbox share a detector. The zero value is ready.
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

// blame counts the errors that a message has caused.
type blame struct {
	count     int
	successes int64 // of all messages, at the latest error of this message
}

// success notes that a transaction of ref was committed.
func (o *outageDetector) success(ref messageRef) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.successes++
	delete(o.blames, ref)
}

// databaseError notes an error of ref that may be the database's fault.
func (o *outageDetector) databaseError(ref messageRef) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ref != o.last {
		o.last, o.otherAt = ref, o.lastAt
	}
	o.lastAt = time.Now()
}

// blame judges one more error of ref, and tells whether ref has caused enough errors to count as a
// failed attempt. ref has caused an error if another message succeeded since the previous error of
// ref, or if no other message failed lately. Otherwise an outage has caused the error.
func (o *outageDetector) blame(ref messageRef) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	b, begun := o.blames[ref]
	healthy := begun && o.successes != b.successes
	b.successes = o.successes
	if healthy || !o.othersFail(ref) {
		b.count++
	}
	if b.count >= databaseErrorLimit {
		delete(o.blames, ref)
		return true
	}
	if o.blames == nil || len(o.blames) >= maxBlames { // a lost count costs a few more tries
		o.blames = make(map[messageRef]blame)
	}
	o.blames[ref] = b
	return false
}

// othersFail tells whether a message other than ref had an error lately. The caller holds mu.
func (o *outageDetector) othersFail(ref messageRef) bool {
	at := o.lastAt
	if ref == o.last {
		at = o.otherAt
	}
	return !at.IsZero() && time.Since(at) < outageMemory
}
