package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

func concurrentTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "equal event waits for the first and is known", run: equalWaits[TX], twoWriters: true},
		{fact: "equal event is new when the first is rolled back", run: equalAfterRollback[TX], twoWriters: true},
		{fact: "other content waits for the first and conflicts", run: differentWaits[TX], twoWriters: true},
		{fact: "opposite orders end in a retryable error or not at all", run: oppositeOrders[TX], twoWriters: true, oneShard: true},
		{fact: "many writers of one event write it once", run: manyWriters[TX]},
		{fact: "lower ID that is committed later is found, and its writer was named", run: lowerIDLater[TX], twoWriters: true, oneShard: true},
		{fact: "writers of a shard take turns, so that its events become visible in the order of their IDs", run: shardTurns[TX], twoWriters: true, shardWriters: true},
		{fact: "locked key makes others wait", run: lockedKeyWaits[TX], twoWriters: true},
	}
}

// secondAppend appends r in a new transaction, and checks that the append waits. result gets the
// error of the append; known is set before.
func (o *outboxRig[TX]) secondAppend(r outbox.Record) (tx TX, known *[]bool, result <-chan error) {
	o.Helper()
	tx = o.begin()
	known = new([]bool)
	result = o.async(func() (err error) {
		*known, err = o.Store.Append(o.ctx(), tx, uuid.New(), []outbox.Record{r})
		return err
	})
	o.stays("second append", result)
	return tx, known, result
}

func equalWaits[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	tx1 := o.begin()
	o.appendIn(tx1, uuid.New(), r)
	tx2, known, result := o.secondAppend(r)
	o.commit(tx1)
	o.ok(o.result(result))
	if !slices.Equal(*known, []bool{true}) {
		o.Errorf("known is %v", *known)
	}
	o.commit(tx2)
	o.expectQueue(r)
}

func equalAfterRollback[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	tx1 := o.begin()
	o.appendIn(tx1, uuid.New(), r)
	tx2, known, result := o.secondAppend(r)
	o.rollback(tx1)
	o.ok(o.result(result))
	if !slices.Equal(*known, []bool{false}) {
		o.Errorf("known is %v", *known)
	}
	o.commit(tx2)
	o.expectQueue(r)
}

func differentWaits[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	tx1 := o.begin()
	o.appendIn(tx1, uuid.New(), r)
	tx2, _, result := o.secondAppend(altered(r))
	o.commit(tx1)
	o.expectError(o.result(result), outbox.ErrConflict)
	if err := o.Commit(o.ctx(), tx2); err == nil {
		o.Error("commit after a conflict succeeded")
	}
	_ = o.Rollback(o.ctx(), tx2)
	o.expectQueue(r)
}

func oppositeOrders[TX any](o *outboxRig[TX]) {
	a, b := record("key", "a"), record("key", "b")
	o.write(a, b)
	// Each transaction repeats the first event of the other transaction as its second event.
	var first sync.WaitGroup
	first.Add(2)
	run := func(r1, r2 outbox.Record) func() error {
		return func() error {
			ctx := o.ctx()
			tx, err := o.Begin(ctx)
			if err != nil {
				first.Done()
				return err
			}
			writer := uuid.New()
			_, err = o.Store.Append(ctx, tx, writer, []outbox.Record{r1})
			first.Done()
			first.Wait() // both transactions hold their first event now
			if err == nil {
				_, err = o.Store.Append(ctx, tx, writer, []outbox.Record{r2})
			}
			if err != nil {
				_ = o.Rollback(ctx, tx)
				return err
			}
			return o.Commit(ctx, tx)
		}
	}
	r1, r2 := o.async(run(a, b)), o.async(run(b, a))
	errs := []error{o.result(r1), o.result(r2)}
	for _, err := range errs {
		if err != nil && !o.Store.Retryable(fmt.Errorf("wrapped: %w", err)) {
			o.Errorf("%v is not retryable", err)
		}
	}
	if errs[0] != nil && errs[1] != nil {
		o.Errorf("both failed: %v, %v", errs[0], errs[1])
	}
	o.expectQueue(a, b)
}

func manyWriters[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	const n = 8
	results := make([]<-chan error, n)
	news := make(chan struct{}, n)
	for i := range results {
		results[i] = o.async(func() error {
			for {
				fresh := false
				err := o.Store.Transact(o.ctx(), func(ctx context.Context, tx TX) error {
					known, err := o.Store.Append(ctx, tx, uuid.New(), []outbox.Record{r})
					fresh = err == nil && !known[0]
					return err
				})
				if err == nil && fresh {
					news <- struct{}{}
				}
				if err == nil || !o.Store.Retryable(err) {
					return err
				}
			}
		})
	}
	for _, result := range results {
		o.ok(o.result(result))
	}
	if len(news) != 1 {
		o.Errorf("event was new to %d writers", len(news))
	}
	o.expectQueue(r)
}

func lowerIDLater[TX any](o *outboxRig[TX]) {
	late, early := record("key", "late"), record("key", "early")
	tx := o.begin()
	o.appendIn(tx, uuid.New(), late)
	o.write(early)
	o.expectQueue(early)
	visible := o.queue()[0].Seq

	writers, err := o.Store.Writers(o.ctx())
	o.ok(err)
	if len(writers) == 0 {
		o.Error("no writer is named while one may commit a lower ID")
	}
	o.commit(tx)
	after, err := o.Store.Writers(o.ctx())
	o.ok(err)
	for _, name := range after {
		if slices.Contains(writers, name) {
			o.Errorf("writer %q is named after its end", name)
		}
	}
	o.expectQueue(late, early)
	if got := o.queue()[0].Seq; got >= visible {
		o.Errorf("late event has ID %d, behind %d", got, visible)
	}
	other := o.begin()
	o.appendIn(other, uuid.New(), record("key", "x"))
	again, err := o.Store.Writers(o.ctx())
	o.ok(err)
	for _, name := range again {
		if slices.Contains(writers, name) {
			o.Errorf("name %q was given to another transaction", name)
		}
	}
	o.rollback(other)
}

// shardTurns tests that a transaction that writes to a shard waits for the end, of any kind, of an
// earlier transaction that has written to the shard. Other shards do not wait.
func shardTurns[TX any](o *outboxRig[TX]) {
	for _, commit := range []bool{true, false} {
		first, second, other := recordIn(1, "first"), recordIn(1, "second"), recordIn(2, "other")
		tx := o.begin()
		o.appendIn(tx, uuid.New(), first)
		waits := o.async(func() error {
			return o.Store.Transact(o.ctx(), func(ctx context.Context, tx TX) error {
				_, err := o.Store.Append(ctx, tx, uuid.New(), []outbox.Record{second})
				return err
			})
		})
		o.stays("append to a shard that is being written to", waits)
		o.write(other)
		want := []outbox.Record{first, second}
		if commit {
			o.commit(tx)
		} else {
			o.rollback(tx)
			want = want[1:]
		}
		o.ok(o.result(waits))
		got, err := o.Store.Fetch(o.ctx(), []outbox.Range{{Shard: 1, Limit: 100}})
		o.ok(err)
		o.expectIDs("shard", ids(got)[len(got)-len(want):], want...)
	}
}

func lockedKeyWaits[TX any](o *outboxRig[TX]) {
	tx1, tx2, tx3 := o.begin(), o.begin(), o.begin()
	o.ok(o.Store.LockKeys(o.ctx(), tx1, []string{"a", "b"}))
	o.ok(o.Store.LockKeys(o.ctx(), tx3, []string{"c"}))
	waits := o.async(func() error { return o.Store.LockKeys(o.ctx(), tx2, []string{"b", "d"}) })
	o.stays("lock of a locked key", waits)
	o.rollback(tx3)
	o.stays("lock of a locked key", waits)
	o.commit(tx1)
	o.ok(o.result(waits))
	o.rollback(tx2)
}

func transactionTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "transact commits", run: transactCommits[TX]},
		{fact: "transact rolls back on an error, a panic and Goexit", run: transactRollsBack[TX]},
		{fact: "swallowed conflict makes transact fail", run: transactFailsLoud[TX]},
		{fact: "transact that was cancelled commits nothing", run: transactCancelled[TX]},
		{fact: "savepoint is released, or rolled back to", run: savepoints[TX]},
		{fact: "savepoint is rolled back to on a panic and Goexit", run: savepointPanics[TX]},
		{fact: "other errors are not retryable", run: notRetryable[TX]},
	}
}

// outcome runs fn on a goroutine and returns how fn ended: an error, "panic" or "exit".
func (o *outboxRig[TX]) outcome(fn func() error) any {
	o.Helper()
	result := make(chan any, 1)
	o.ok(o.result(o.async(func() error {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			var how any = "exit"
			defer func() {
				if recover() != nil {
					how = "panic"
				}
				result <- how
			}()
			err := fn()
			how = err
		}()
		<-ended
		return nil
	})))
	return <-result
}

var errOfTest = errors.New("error of the test")

// endings are the ways of a function not to return nil.
var endings = []struct {
	name string
	end  func() error
	want any
}{
	{"error", func() error { return errOfTest }, errOfTest},
	{"panic", func() error { panic("panic of the test") }, "panic"},
	{"Goexit", func() error { runtime.Goexit(); return nil }, "exit"},
}

func transactCommits[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	o.ok(o.Store.Transact(o.ctx(), func(ctx context.Context, tx TX) error {
		_, err := o.Store.Append(ctx, tx, uuid.New(), []outbox.Record{r})
		return err
	}))
	o.expectQueue(r)
}

func transactRollsBack[TX any](o *outboxRig[TX]) {
	for _, ending := range endings {
		got := o.outcome(func() error {
			return o.Store.Transact(o.ctx(), func(ctx context.Context, tx TX) error {
				if _, err := o.Store.Append(ctx, tx, uuid.New(), []outbox.Record{record("key", "a")}); err != nil {
					return err
				}
				return ending.end()
			})
		})
		if err, ok := got.(error); ok && errors.Is(err, errOfTest) {
			got = errOfTest
		}
		if got != ending.want {
			o.Errorf("%s: transact ended with %v", ending.name, got)
		}
		o.expectQueue()
	}
}

func transactFailsLoud[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	o.write(r)
	err := o.Store.Transact(o.ctx(), func(ctx context.Context, tx TX) error {
		writer := uuid.New()
		if _, err := o.Store.Append(ctx, tx, writer, []outbox.Record{record("key", "b")}); err != nil {
			return err
		}
		_, _ = o.Store.Append(ctx, tx, writer, []outbox.Record{altered(r)})
		return nil
	})
	if err == nil {
		o.Error("transact succeeded after a conflict")
	}
	if errors.Is(err, outbox.ErrCommitUnknown) {
		o.Errorf("%v: the outcome is known", err)
	}
	o.expectQueue(r)
}

func transactCancelled[TX any](o *outboxRig[TX]) {
	ctx, cancel := context.WithCancel(o.ctx())
	err := o.Store.Transact(ctx, func(ctx context.Context, tx TX) error {
		_, err := o.Store.Append(ctx, tx, uuid.New(), []outbox.Record{record("key", "a")})
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) {
		o.Errorf("error is %v", err)
	}
	o.expectQueue()
}

func savepoints[TX any](o *outboxRig[TX]) {
	before, kept, inner, lost, after := record("k", "1"), record("k", "2"), record("k", "3"), record("k", "4"), record("k", "5")
	writer := uuid.New()
	put := func(ctx context.Context, tx TX, r outbox.Record) error {
		_, err := o.Store.Append(ctx, tx, writer, []outbox.Record{r})
		return err
	}
	o.ok(o.Store.Transact(o.ctx(), func(ctx context.Context, tx TX) error {
		o.ok(put(ctx, tx, before))
		o.ok(o.Store.Savepoint(ctx, tx, func(ctx context.Context, tx TX) error {
			o.ok(put(ctx, tx, kept))
			return o.Store.Savepoint(ctx, tx, func(ctx context.Context, tx TX) error { return put(ctx, tx, inner) })
		}))
		err := o.Store.Savepoint(ctx, tx, func(ctx context.Context, tx TX) error {
			o.ok(put(ctx, tx, lost))
			return errOfTest
		})
		if !errors.Is(err, errOfTest) {
			o.Errorf("savepoint returned %v", err)
		}
		return put(ctx, tx, after)
	}))
	o.expectQueue(before, kept, inner, after)
}

func savepointPanics[TX any](o *outboxRig[TX]) {
	writer := uuid.New()
	kept := record("k", "kept")
	tx := o.begin()
	o.appendIn(tx, writer, kept)
	for _, ending := range endings {
		o.outcome(func() error {
			return o.Store.Savepoint(o.ctx(), tx, func(ctx context.Context, tx TX) error {
				if _, err := o.Store.Append(ctx, tx, writer, []outbox.Record{record("k", "lost")}); err != nil {
					return err
				}
				return ending.end()
			})
		})
	}
	o.commit(tx)
	o.expectQueue(kept)
}

func notRetryable[TX any](o *outboxRig[TX]) {
	for _, err := range []error{nil, errOfTest, outbox.ErrConflict, outbox.ErrCommitUnknown, context.DeadlineExceeded} {
		if o.Store.Retryable(err) {
			o.Errorf("%v is retryable", err)
		}
	}
}
