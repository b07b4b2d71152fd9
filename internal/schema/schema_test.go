package schema

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// answers are what a store says, one after another; the last for ever.
type answers []error

func (a *answers) CheckSchema(context.Context) error {
	err := (*a)[0]
	if len(*a) > 1 {
		*a = (*a)[1:]
	}
	return err
}

func TestEachAnswerIsReportedOnceUntilAllIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down, missing := errors.New("down"), errors.New("missing")
		var got []error
		Await(t.Context(), &answers{down, down, missing, nil}, func(err error) { got = append(got, err) })
		if fmt.Sprint(got) != "[down missing <nil>]" {
			t.Errorf("reported %v", got)
		}
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		reports := 0
		Await(ctx, &answers{errors.New("down")}, func(error) { reports++; cancel() })
		Await(ctx, struct{}{}, func(error) { reports++ })
		if reports != 1 {
			t.Errorf("%d reports", reports)
		}
	})
}
