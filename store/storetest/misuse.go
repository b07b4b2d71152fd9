package storetest

import (
	"context"
	"testing"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// MisuseFixture is an empty outbox and inbox, for one test, and what a handler can do to its
// transaction there.
type MisuseFixture[TX any] struct {
	Store interface {
		outbox.Store[TX]
		inbox.Store[TX]
		inbox.EffectStore[TX]
		inbox.RequestStore[TX]
	}
	// Effect, Effects, Break, ErrorsDoom and OneWriter are those of an [InboxFixture].
	Effect     func(ctx context.Context, tx TX, name string) error
	Effects    func(ctx context.Context) ([]string, error)
	Break      func(ctx context.Context, tx TX) error
	ErrorsDoom bool
	OneWriter  bool
	// Exec runs a statement without arguments in tx.
	Exec func(ctx context.Context, tx TX, sql string) error
	// Commit and Rollback are the methods of tx.
	Commit, Rollback func(ctx context.Context, tx TX) error
	// LeaveOpen begins to read rows in tx, and does not close them.
	LeaveOpen func(ctx context.Context, tx TX) error
	// LeaveBatchOpen sends a batch of statements in tx, and does not close its results.
	LeaveBatchOpen func(ctx context.Context, tx TX) error
	// Past runs statements on the connection of tx where the store does not see them.
	Past func(ctx context.Context, tx TX, sql ...string) error
	// State returns what decides what statements in tx do and a handler could change: settings, the
	// role, the isolation level, where names are looked for.
	State func(ctx context.Context, tx TX) (string, error)
	// Changes are the statements that change that, or for which some databases commit, by the facts
	// of [Misuse].
	Changes map[string]MisuseChange
	// Without says, by the facts of [Misuse], why the database, or its driver, does not know a
	// misuse.
	Without map[string]string
}

// MisuseChange is a statement of a handler that changes how later statements run, or what is
// committed.
type MisuseChange struct {
	SQL string
	// Says is part of the error that the handler's transaction ends with. "": there is none, and
	// the effect is there.
	Says string
	// Past tells that the store cannot refuse it: what it has committed stays.
	Past bool
}

// Misuse tests that a handler that misuses its transaction loses nothing: no message is
// acknowledged without its effect, none has two effects, no neighbour of a group and no later
// message is hurt, and an error says what was done wrong. It tries each misuse in each way in which
// a function is given a transaction. open returns a new, empty store for each test.
//
// The facts of misuses are shown by go test -v. A fixture has to have what each of them needs, or
// say in Without why not.
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

// way is one in which a function is given a transaction.
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
