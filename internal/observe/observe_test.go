package observe

import (
	"context"
	"errors"
	"slices"
	"testing"
)

var (
	errStatement = errors.New("statement")
	errReturned  = errors.New("returned")
	errEnded     = errors.New("ended")
)

type observer struct{ ended []Event }

func (o *observer) Begin() Watch           { return o }
func (o *observer) Statement(string) error { return errStatement }
func (o *observer) Returned(error) error   { return errReturned }
func (o *observer) Ended(events []Event, _ error) error {
	o.ended = events
	return errEnded
}

func TestTransactionWithoutAnObserverIsNotWatched(t *testing.T) {
	ctx, seen := Begin(t.Context())
	if ctx != t.Context() || seen != nil || From(ctx) != nil {
		t.Error("it is watched")
	}
	seen.Wrote("event")
	seen.UndoTo(seen.Mark())
	if err := seen.Statement("SELECT 1"); err != nil {
		t.Error(err)
	}
	if err := seen.Returned(errReturned); !errors.Is(err, errReturned) {
		t.Error(err)
	}
	if err := seen.Ended(errEnded); !errors.Is(err, errEnded) {
		t.Error(err)
	}
	ctx = context.WithValue(t.Context(), transactionKey{}, nil)
	if n := testing.AllocsPerRun(100, func() { Begin(ctx) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestObserverDecidesAndLearnsOfTheEventsThatWereNotUndone(t *testing.T) {
	t.Parallel()
	o := &observer{}
	ctx, seen := Begin(Context(t.Context(), o))
	if From(ctx) != seen {
		t.Error("the context is not in the transaction")
	}
	if err := seen.Statement(""); err != nil {
		t.Errorf("a statement without text: %v", err)
	}
	seen.Wrote("first")
	if err := seen.Statement("SELECT 1"); !errors.Is(err, errStatement) {
		t.Error(err)
	}
	mark := seen.Mark()
	seen.Wrote("undone")
	seen.UndoTo(mark)
	seen.Wrote("second")
	if err := seen.Returned(nil); !errors.Is(err, errReturned) {
		t.Error(err)
	}
	if err := seen.Ended(nil); !errors.Is(err, errEnded) {
		t.Error(err)
	}
	if want := []Event{{"first", 0}, {"second", 1}}; !slices.Equal(o.ended, want) {
		t.Errorf("events %v, want %v", o.ended, want)
	}
}
