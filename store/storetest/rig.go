package storetest

import (
	"context"
	"testing"
	"time"
)

// rig is a test with helpers that wait.
type rig struct{ *testing.T }

func (r rig) ctx() context.Context { return r.Context() }

// ok fails the test if err is not nil.
func (r rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// eventually waits until done returns true, and fails the test after patience.
func (r rig) eventually(what string, done func() bool) {
	r.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			r.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// async runs fn on a goroutine of its own, and returns a channel with its result. The test waits
// for fn at its end.
func (r rig) async(fn func() error) <-chan error {
	r.Helper()
	result := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result <- fn()
	}()
	r.Cleanup(func() { <-ended })
	return result
}

// result waits for the result of an async function.
func (r rig) result(c <-chan error) error {
	r.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		r.Fatalf("no result within %v", patience)
		return nil
	}
}

// stays checks that an async function waits: it has no result for a while.
func (r rig) stays(what string, c <-chan error) {
	r.Helper()
	select {
	case err := <-c:
		r.Fatalf("%s ended with %v, want it to wait", what, err)
	case <-time.After(50 * time.Millisecond):
	}
}
