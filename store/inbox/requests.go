package inbox

import (
	"context"
	"errors"
	"time"
)

// ErrInProgress is returned when another transaction has claimed the key and did not end within the
// wait.
var ErrInProgress = errors.New("a request with this idempotency key is being handled")

// ErrUnanswered is returned for a key whose claim is committed without an answer: the handler has
// ended the transaction in a way that the store could not refuse.
var ErrUnanswered = errors.New("the transaction of the request was committed by its handler, and part of its work may be missing")

// Request identifies a request.
type Request struct {
	// Scope names the owner of the key; at most 255 bytes.
	Scope string
	// Key is the idempotency key; 1 to 255 bytes.
	Key string
	// Fingerprint tells different requests under one key apart.
	Fingerprint [32]byte
}

// Answer is a stored answer.
type Answer struct {
	Status int
	// Header has canonical names.
	Header map[string][]string
	Body   []byte
	// Fingerprint is the fingerprint of the answered request.
	Fingerprint [32]byte
}

// RequestStore keeps requests and their answers. Its methods are safe for concurrent use,
// in different transactions.
type RequestStore[TX any] interface {
	// ClaimRequest claims r in tx. It returns nil for the first claim of scope and key, or the
	// stored answer of an earlier request. While another transaction holds the claim, ClaimRequest
	// waits; after wait it returns an error that wraps [ErrInProgress], and tx cannot go on.
	ClaimRequest(ctx context.Context, tx TX, r Request, wait time.Duration) (*Answer, error)
	// AnswerRequest stores the answer of a request that was claimed in tx.
	AnswerRequest(ctx context.Context, tx TX, r Request, a Answer) error
	// ForgetRequests removes, in a transaction of its own, at most limit requests that were claimed
	// longer than age ago by the database's clock, and returns the number of removed requests.
	ForgetRequests(ctx context.Context, age time.Duration, limit int) (int, error)
}
