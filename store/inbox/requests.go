package inbox

import (
	"context"
	"errors"
	"time"
)

// ErrInProgress is returned by a store when another transaction that has claimed the key did not
// end within the time to wait.
var ErrInProgress = errors.New("a request with this idempotency key is being handled")

// ErrUnanswered is returned by a store for a key whose claim is committed without an answer: its
// handler has ended the transaction in a way that the store could not refuse.
var ErrUnanswered = errors.New("the transaction of the request was committed by its handler, and part of its work may be missing")

// Request is what a store knows a request by.
type Request struct {
	// Scope tells whose key it is; at most 255 bytes.
	Scope string
	// Key is the idempotency key; 1 to 255 bytes.
	Key string
	// Fingerprint tells requests under one key apart.
	Fingerprint [32]byte
}

// Answer is a stored answer.
type Answer struct {
	Status int
	// Header has canonical names.
	Header map[string][]string
	Body   []byte
	// Fingerprint is that of the request which was answered.
	Fingerprint [32]byte
}

// RequestStore keeps requests and their answers. Its methods are safe for concurrent use,
// in different transactions.
type RequestStore[TX any] interface {
	// ClaimRequest claims r in tx. It returns nil if nobody has claimed scope and key before, or
	// the answer that was stored. While another transaction holds the claim it waits, and
	// returns an error that wraps [ErrInProgress] after wait, from which tx cannot go on.
	ClaimRequest(ctx context.Context, tx TX, r Request, wait time.Duration) (*Answer, error)
	// AnswerRequest stores the answer of a request that was claimed in tx.
	AnswerRequest(ctx context.Context, tx TX, r Request, a Answer) error
	// ForgetRequests removes at most limit requests, in a transaction of its own, that were
	// claimed longer than age ago by the database's clock, and tells how many.
	ForgetRequests(ctx context.Context, age time.Duration, limit int) (int, error)
}
