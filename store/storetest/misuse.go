package storetest

import (
	"context"
	"testing"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// MisuseFixture is an empty outbox and inbox for one test, with the means of a handler to misuse
// its transaction.
type MisuseFixture[TX any] struct {
	Store interface {
		outbox.Store[TX]
		inbox.Store[TX]
		inbox.EffectStore[TX]
		inbox.RequestStore[TX]
	}
	// Effect, Effects, Break, ErrorsDoom and OneWriter are as in [InboxFixture].
	Effect     func(ctx context.Context, tx TX, name string) error
	Effects    func(ctx context.Context) ([]string, error)
	Break      func(ctx context.Context, tx TX) error
	ErrorsDoom bool
	OneWriter  bool
	// Exec runs a statement without arguments in tx.
	Exec func(ctx context.Context, tx TX, sql string) error
	// Commit and Rollback are the methods of tx.
	Commit, Rollback func(ctx context.Context, tx TX) error
	// LeaveOpen begins to read rows in tx, and leaves the rows open.
	LeaveOpen func(ctx context.Context, tx TX) error
	// LeaveBatchOpen sends a batch of statements in tx, and leaves the results open.
	LeaveBatchOpen func(ctx context.Context, tx TX) error
	// Past runs statements on the connection of tx, unseen by the store.
	Past func(ctx context.Context, tx TX, sql ...string) error
	// State returns the session state that a handler could change and that affects statements in
	// tx: settings, the role, the isolation level, the search path.
	State func(ctx context.Context, tx TX) (string, error)
	// Changes are statements that change the session state, or for which some databases commit, by
	// the facts of [Misuse].
	Changes map[string]MisuseChange
	// Without says, by the facts of [Misuse], why a misuse is not possible with the database or its
	// driver.
	Without map[string]string
}

// MisuseChange is a statement of a handler that changes how later statements run, or what is
// committed.
type MisuseChange struct {
	SQL string
	// Says is part of the error of the handler's transaction. "" means that the transaction commits
	// and the effect exists.
	Says string
	// Past tells that the store cannot refuse the statement: changes that the statement has
	// committed stay.
	Past bool
}

// Misuse tests that a handler that misuses its transaction loses nothing: no message is
// acknowledged without its effect or has two effects, no other message of the group and no later
// message is harmed, and an error names the misuse. It tries each misuse in each way in which a
// function gets a transaction. open returns a new, empty store for each test.
//
// go test -v shows the facts of misuses. A fixture must have the means for each misuse, or say in
// Without why not.
func Misuse[TX any](t *testing.T, open func(t *testing.T) MisuseFixture[TX]) {
	t.Helper()
	for _, w := range ways[TX]() {
		t.Run(w.name, func(t *testing.T) {
			for _, x := range misuses[TX]() {
				t.Run(x.fact, func(t *testing.T) {
					t.Parallel()
					if why := x.not[w.name]; why != "" {
						t.Log("does not apply: " + why)
						return
					}
					f := open(t)
					if why := f.Without[x.fact]; why != "" {
						t.Log("does not apply: " + why)
						return
					}
					if change, ok := f.Changes[x.fact]; ok {
						x.does(change)
					}
					if x.do == nil || x.needs != nil && !x.needs(&f) {
						t.Fatalf("the fixture has no means for a handler that %s, and Without does not say why", x.fact)
					}
					w.run(&misuse[TX]{rig: rig{t}, MisuseFixture: f, abuse: x})
				})
			}
		})
	}
}

// way is a way in which a function gets a transaction.
type way[TX any] struct {
	name string
	run  func(*misuse[TX])
}

const (
	inRequest  = "handler of an idempotent request"
	inTransact = "handler of Transact"
)

func ways[TX any]() []way[TX] {
	return []way[TX]{
		{"handler alone", (*misuse[TX]).alone},
		{"handler with an optimistic claim", (*misuse[TX]).optimistic},
		{"handler in a group", (*misuse[TX]).group},
		{"handler in a batch", (*misuse[TX]).batch},
		{"handler after it was parked", (*misuse[TX]).parkedBefore},
		{"handler of what comes before an effect elsewhere", (*misuse[TX]).beforeEffect},
		{"handler of what follows an effect elsewhere", (*misuse[TX]).afterEffect},
		{inRequest, (*misuse[TX]).request},
		{inTransact, (*misuse[TX]).transact},
		{"handler of a group, with an error besides", (*misuse[TX]).groupWithError},
		{"handler alone, with an error besides", (*misuse[TX]).aloneWithError},
	}
}
