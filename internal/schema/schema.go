// Package schema looks whether a store has the tables that this version of the library needs, for
// what runs on it.
package schema

import (
	"context"
	"time"
)

// Checker is a store that knows which migrations its database has.
type Checker interface {
	// CheckSchema returns an error that says what is missing.
	CheckSchema(ctx context.Context) error
}

const (
	// again is the time between two looks, for somebody who migrates now.
	again = 5 * time.Second
	// answered is how long an answer may take.
	answered = 10 * time.Second
)

// Await asks store until it answers that all is there, or until ctx ends. Each answer that is
// another one than before is reported, nil at last. A store that is no [Checker] has all, and
// nothing is reported.
func Await(ctx context.Context, store any, report func(error)) {
	checker, ok := store.(Checker)
	if !ok {
		return
	}
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	last := ""
	for {
		err := check(ctx, checker)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			report(nil)
			return
		}
		if text := err.Error(); text != last {
			report(err)
			last = text
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func check(ctx context.Context, checker Checker) error {
	ctx, cancel := context.WithTimeout(ctx, answered)
	defer cancel()
	return checker.CheckSchema(ctx)
}
