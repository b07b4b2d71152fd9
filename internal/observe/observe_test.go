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

type observer struct {
	dead   error
	parked string
	ended  []Event
}

func (o *observer) Begin() (Watch, error)  { return o, o.dead }
func (o *observer) Parked(state, _ string) { o.parked = state }
func (o *observer) Statement(string) error { return errStatement }
func (o *observer) Returned(error) error   { return errReturned }
func (o *observer) Ended(events []Event, _ error) error {
	o.ended = events
	return errEnded
}

func TestTransactionWithoutAnObserverIsNotWatched(t *testing.T) {
	ctx, seen, err := Begin(t.Context())
	if ctx != t.Context() || seen != nil || err != nil || From(ctx) != nil || Take(ctx) != nil {
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
	if n := testing.AllocsPerRun(100, func() { _, _, _ = Begin(ctx) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestObserverDecidesAndLearnsOfTheEventsThatWereNotUndone(t *testing.T) {
	t.Parallel()
	o := &observer{}
	ctx, seen, err := Begin(Context(t.Context(), o))
	if err != nil {
		t.Fatal(err)
	}
	if From(ctx) != seen || Take(ctx) != seen || Take(ctx) != nil {
		t.Error("the context is not in the transaction, or a second store has taken it")
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
	if From(ctx) != nil || ctx.Err() == nil {
		t.Error("the transaction is not over")
	}
	if Parked(ctx, "dead", "error"); o.parked != "dead" {
		t.Error("the observer does not know of the parked message")
	}
	o.dead = ErrCrash
	if _, _, err := Begin(ctx); !errors.Is(err, ErrCrash) {
		t.Errorf("a dead process begins a transaction: %v", err)
	}
}
