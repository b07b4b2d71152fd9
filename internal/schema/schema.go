// Package schema checks whether a store has the tables of this version of the library, for the
// components that run on the store.
package schema

import (
	"context"
	"time"
)

// Checker is a store that can tell which migrations its database lacks.
type Checker interface {
	// CheckSchema returns an error that names the missing migrations, or nil.
	CheckSchema(ctx context.Context) error
}

const (
	// again is the time between two checks, while an operator migrates.
	again = 5 * time.Second
	// answered is how long a check may take.
	answered = 10 * time.Second
)

// Await asks store until no migration is missing, or until ctx ends. Each answer that differs from
// the last one is reported, nil at the end. A store that is not a [Checker] counts as complete, and
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
