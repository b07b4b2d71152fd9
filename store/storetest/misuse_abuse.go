package storetest

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"

	watermill "github.com/ThreeDotsLabs/watermill/message"
)

// abuse is one way to misuse a transaction.
type abuse[TX any] struct {
	fact string
	do   func(m *misuse[TX], ctx context.Context, at *given[TX]) error
	says string // part of the error; "" if the abuse does no harm
	// past tells that the store cannot refuse the abuse: changes that it has committed stay, and an
	// operator decides.
	past bool
	// late tells that the abuse exceeds the deadline of the function.
	late bool
	// dooms tells that the abuse does harm if ErrorsDoom is set.
	dooms bool
	// calls tells that the abuse handles another message meanwhile.
	calls bool
	needs func(f *MisuseFixture[TX]) bool
	not   map[string]string // why it does not apply, by way
}

// given has the arguments of a function.
type given[TX any] struct {
	tx  TX
	msg *watermill.Message // nil for a request or Transact
	r   *http.Request      // nil except for a request
}

// does makes the abuse run the statement of change.
func (x *abuse[TX]) does(change MisuseChange) {
	x.do = func(m *misuse[TX], ctx context.Context, at *given[TX]) error { return m.Exec(ctx, at.tx, change.SQL) }
	x.says, x.past, x.needs = change.Says, change.Past, nil
}

const (
	saysOwner = "does not end the transaction"
	saysEnded = "may have been ended"
	saysOpen  = "left open"
	boom      = "boom"
)

func misuses[TX any]() (all []abuse[TX]) {
	for _, kind := range [][]abuse[TX]{refused[TX](), endingsPast[TX](), leftovers[TX](), interruptions[TX](), meddlings[TX](), changes[TX](), implied[TX]()} {
		all = append(all, kind...)
	}
	return all
}

func exec[TX any](sql string) func(m *misuse[TX], ctx context.Context, at *given[TX]) error {
	return func(m *misuse[TX], ctx context.Context, at *given[TX]) error { return m.Exec(ctx, at.tx, sql) }
}

// refused are attempts to end the transaction that a store refuses.
func refused[TX any]() []abuse[TX] {
	all := []abuse[TX]{
		{fact: "commits", do: func(m *misuse[TX], ctx context.Context, at *given[TX]) error { return m.Commit(ctx, at.tx) }},
		{fact: "rolls back", do: func(m *misuse[TX], ctx context.Context, at *given[TX]) error { return m.Rollback(ctx, at.tx) }},
		{fact: "commits by SQL", do: exec[TX]("COMMIT")},
		{fact: "commits by SQL in small letters behind a comment", do: exec[TX]("/* done */ commit")},
		{fact: "commits by END", do: exec[TX]("END")},
		{fact: "commits behind another statement", do: exec[TX]("SELECT 1; COMMIT")},
		{fact: "rolls back by SQL", do: exec[TX]("ROLLBACK")},
		{fact: "rolls back by ABORT", do: exec[TX]("-- done\nABORT")},
		{fact: "commits and chains", do: exec[TX]("COMMIT AND CHAIN")},
		{fact: "rolls back and chains", do: exec[TX]("ROLLBACK AND CHAIN")},
	}
	for i := range all {
		all[i].says = saysOwner
	}
	return all
}

// endingsPast are ends of the transaction that a store can only detect afterwards.
func endingsPast[TX any]() []abuse[TX] {
	past := func(fact string, sql ...string) abuse[TX] {
		return abuse[TX]{
			fact: fact, says: saysEnded, past: true,
			needs: func(f *MisuseFixture[TX]) bool { return f.Past != nil },
			do:    func(m *misuse[TX], ctx context.Context, at *given[TX]) error { return m.Past(ctx, at.tx, sql...) },
		}
	}
	return []abuse[TX]{
		past("commits past the store", "COMMIT"),
		past("rolls back past the store", "ROLLBACK"),
		past("commits and begins anew past the store", "COMMIT", "BEGIN"),
		past("rolls back and begins anew past the store", "ROLLBACK", "BEGIN"),
		past("drops a table past the store", "DROP TABLE IF EXISTS nothing"),
	}
}

// leftovers are abuses by leaving work behind, such as open rows.
func leftovers[TX any]() []abuse[TX] {
	return []abuse[TX]{
		{fact: "leaves rows open", says: saysOpen, do: func(m *misuse[TX], ctx context.Context, at *given[TX]) error { return m.LeaveOpen(ctx, at.tx) }},
		{
			fact: "leaves the results of a batch open", says: saysOpen,
			needs: func(f *MisuseFixture[TX]) bool { return f.LeaveBatchOpen != nil },
			do:    func(m *misuse[TX], ctx context.Context, at *given[TX]) error { return m.LeaveBatchOpen(ctx, at.tx) },
		},
		{fact: "keeps its transaction and uses it later", do: func(m *misuse[TX], _ context.Context, at *given[TX]) error {
			m.kept = append(m.kept, at.tx)
			return nil
		}},
		{fact: "leaves a goroutine behind that uses its transaction", do: func(m *misuse[TX], ctx context.Context, at *given[TX]) error {
			m.behind.Go(func() {
				<-m.returned
				if m.Effect(context.WithoutCancel(ctx), at.tx, "later") == nil {
					m.Error("the transaction works after its handler has returned")
				}
			})
			return nil
		}},
		{fact: "sets a savepoint and goes back to it", do: func(m *misuse[TX], ctx context.Context, at *given[TX]) error {
			err := m.Exec(ctx, at.tx, "SAVEPOINT mine")
			err = errors.Join(err, m.Effect(ctx, at.tx, "undone"))
			return errors.Join(err, m.Exec(ctx, at.tx, "ROLLBACK TO SAVEPOINT mine"))
		}},
	}
}

// interruptions keep a function from returning normally.
func interruptions[TX any]() []abuse[TX] {
	return []abuse[TX]{
		{fact: "panics", says: boom, do: func(*misuse[TX], context.Context, *given[TX]) error { panic(boom) }},
		{fact: "ends its goroutine", says: "Goexit", do: func(*misuse[TX], context.Context, *given[TX]) error {
			runtime.Goexit()
			return nil
		}},
		{fact: "ignores that its time is over", says: "deadline", late: true, do: func(m *misuse[TX], ctx context.Context, at *given[TX]) error {
			select {
			case <-ctx.Done():
			case <-time.After(patience):
				m.Error("the context does not end")
			}
			return m.Effect(context.WithoutCancel(ctx), at.tx, "late")
		}},
		{
			fact: "goes on after a statement that has failed", says: "had failed", dooms: true, needs: func(f *MisuseFixture[TX]) bool { return f.Break != nil },
			do: func(m *misuse[TX], ctx context.Context, at *given[TX]) error { return m.Break(ctx, at.tx) },
		},
	}
}

// meddlings are abuses of messages.
func meddlings[TX any]() []abuse[TX] {
	noHandler := map[string]string{inRequest: "it is no handler of an inbox", inTransact: "it is no handler of an inbox"}
	return []abuse[TX]{
		{
			fact: "changes what it was given", not: map[string]string{inTransact: "it is given nothing but the transaction"},
			do: func(_ *misuse[TX], _ context.Context, at *given[TX]) error {
				if at.msg != nil {
					clear(at.msg.Payload)
					at.msg.UUID = "changed"
					clear(at.msg.Metadata)
				}
				if at.r != nil {
					clear(at.r.Header)
					at.r.Method, at.r.URL.Path = http.MethodDelete, "/changed"
				}
				return nil
			},
		},
		{fact: "has another handler handle a message", calls: true, do: func(m *misuse[TX], ctx context.Context, _ *given[TX]) error {
			return m.call(ctx, m.other)
		}},
		{
			fact: "has itself handle a message", calls: true, not: noHandler,
			do: func(m *misuse[TX], ctx context.Context, _ *given[TX]) error { return m.call(ctx, m.self) },
		},
	}
}

// changes are abuses that change how later statements run.
func changes[TX any]() []abuse[TX] {
	return ofFixture[TX](
		"changes a setting for the transaction",
		"changes a setting for the session",
		"takes another role for the transaction",
		"takes another role for the session",
		"takes another user for the session",
		"looks for names elsewhere in the transaction",
		"looks for names elsewhere in the session",
		"changes the isolation level of the transaction",
		"changes the isolation level of the session",
	)
}

// implied are statements before which some databases commit.
func implied[TX any]() []abuse[TX] {
	return ofFixture[TX](
		"defines a table",
		"drops a table",
		"drops a table under a setting for that",
		"locks a table",
		"begins another transaction",
		"has each statement committed",
	)
}

// ofFixture are abuses whose statements and outcomes come from the fixture.
func ofFixture[TX any](facts ...string) []abuse[TX] {
	all := make([]abuse[TX], len(facts))
	for i, fact := range facts {
		all[i].fact = fact
	}
	return all
}
