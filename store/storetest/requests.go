package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// RequestFixture is an empty store of requests for one test. Its fields are as in [OutboxFixture].
type RequestFixture[TX any] struct {
	Store     inbox.RequestStore[TX]
	Begin     func(ctx context.Context) (TX, error)
	Commit    func(ctx context.Context, tx TX) error
	Rollback  func(ctx context.Context, tx TX) error
	OneWriter bool
}

type requests[TX any] struct {
	rig
	RequestFixture[TX]
}

// Requests tests that a store keeps the contract of [inbox.RequestStore]. open returns a new, empty
// store for each test. The tests run in parallel.
func Requests[TX any](t *testing.T, open func(t *testing.T) RequestFixture[TX]) {
	t.Helper()
	for fact, test := range map[string]func(*requests[TX]){
		"claimed request is answered with what was stored":           (*requests[TX]).answered,
		"scopes and keys are told apart":                             (*requests[TX]).toldApart,
		"rolled back claim leaves nothing":                           (*requests[TX]).rolledBack,
		"second claim waits for the first and gets its answer":       (*requests[TX]).waits,
		"second claim gets the key when the first is rolled back":    (*requests[TX]).inherits,
		"second claim gives up after its wait":                       (*requests[TX]).givesUp,
		"claim that is committed without an answer is told":          (*requests[TX]).unanswered,
		"answer of a request that is not claimed is an error":        (*requests[TX]).unclaimed,
		"old requests are forgotten, the oldest first, and no other": (*requests[TX]).forgotten,
	} {
		t.Run(fact, func(t *testing.T) {
			t.Parallel()
			test(&requests[TX]{rig: rig{t}, RequestFixture: open(t)})
		})
	}
}

func (q *requests[TX]) begin() TX {
	q.Helper()
	tx, err := q.Begin(q.ctx())
	q.ok(err)
	q.Cleanup(func() { _ = q.Rollback(context.WithoutCancel(q.ctx()), tx) })
	return tx
}

func (q *requests[TX]) claim(tx TX, r inbox.Request) *inbox.Answer {
	q.Helper()
	a, err := q.Store.ClaimRequest(q.ctx(), tx, r, patience)
	q.ok(err)
	return a
}

func askedFor(key string) inbox.Request {
	return inbox.Request{Scope: "customer ü", Key: key, Fingerprint: [32]byte{1, 2, 31: 3}}
}

// answer claims r and stores an answer.
func (q *requests[TX]) answer(r inbox.Request) inbox.Answer {
	q.Helper()
	a := inbox.Answer{
		Status: 201, Body: []byte("\x00{\"id\":1}"), Fingerprint: r.Fingerprint,
		Header: map[string][]string{"Location": {"/orders/1"}, "X-Two": {"a", "b"}},
	}
	tx := q.begin()
	if got := q.claim(tx, r); got != nil {
		q.Fatalf("a new request has the answer %+v", got)
	}
	q.ok(q.Store.AnswerRequest(q.ctx(), tx, r, a))
	q.ok(q.Commit(q.ctx(), tx))
	return a
}

func (q *requests[TX]) answered() {
	want := q.answer(askedFor("k"))
	other := askedFor("k")
	other.Fingerprint[0]++
	for range 2 {
		tx := q.begin()
		if got := q.claim(tx, other); got == nil || !reflect.DeepEqual(*got, want) {
			q.Errorf("got %+v, want %+v", got, want)
		}
		q.ok(q.Commit(q.ctx(), tx))
	}
}

func (q *requests[TX]) toldApart() {
	for _, r := range []inbox.Request{{Scope: "a", Key: "b"}, {Scope: "ab", Key: ""}, {Scope: "", Key: "ab"}, {Scope: "a", Key: "B"}} {
		q.answer(r)
	}
}

func (q *requests[TX]) rolledBack() {
	tx := q.begin()
	q.claim(tx, askedFor("k"))
	q.ok(q.Store.AnswerRequest(q.ctx(), tx, askedFor("k"), inbox.Answer{Status: 200}))
	q.ok(q.Rollback(q.ctx(), tx))
	q.answer(askedFor("k"))
}

// contend claims a key in a transaction, and again in a second transaction, which waits until end
// ends the first transaction.
func (q *requests[TX]) contend(wait time.Duration, end func(tx TX) error) (*inbox.Answer, error) {
	q.Helper()
	r := askedFor("k")
	first, second := q.begin(), q.begin()
	q.claim(first, r)
	type outcome struct {
		a   *inbox.Answer
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		a, err := q.Store.ClaimRequest(q.ctx(), second, r, wait)
		done <- outcome{a, err}
	}()
	if end != nil {
		select {
		case o := <-done:
			q.Fatalf("the second claim did not wait: %+v, %v", o.a, o.err)
		case <-time.After(50 * time.Millisecond):
		}
		q.ok(end(first))
	}
	o := <-done
	return o.a, o.err
}

func (q *requests[TX]) waits() {
	if q.OneWriter {
		return
	}
	a, err := q.contend(patience, func(tx TX) error {
		return errors.Join(
			q.Store.AnswerRequest(q.ctx(), tx, askedFor("k"), inbox.Answer{Status: 200, Body: []byte("x")}),
			q.Commit(q.ctx(), tx))
	})
	if err != nil || a == nil || string(a.Body) != "x" {
		q.Errorf("%+v, %v", a, err)
	}
}

func (q *requests[TX]) inherits() {
	if q.OneWriter {
		return
	}
	a, err := q.contend(patience, func(tx TX) error { return q.Rollback(q.ctx(), tx) })
	if err != nil || a != nil {
		q.Errorf("%+v, %v", a, err)
	}
}

func (q *requests[TX]) givesUp() {
	if q.OneWriter {
		return
	}
	if a, err := q.contend(time.Millisecond, nil); a != nil || !errors.Is(err, inbox.ErrInProgress) {
		q.Errorf("%+v, %v", a, err)
	}
}

func (q *requests[TX]) unanswered() {
	tx := q.begin()
	q.claim(tx, askedFor("k"))
	q.ok(q.Commit(q.ctx(), tx))
	if a, err := q.Store.ClaimRequest(q.ctx(), q.begin(), askedFor("k"), patience); a != nil || !errors.Is(err, inbox.ErrUnanswered) {
		q.Errorf("%+v, %v", a, err)
	}
}

func (q *requests[TX]) unclaimed() {
	tx := q.begin()
	if err := q.Store.AnswerRequest(q.ctx(), tx, askedFor("k"), inbox.Answer{Status: 200}); err == nil {
		q.Error("the answer was stored")
	}
}

func (q *requests[TX]) forgotten() {
	for i := range 5 {
		q.answer(askedFor(fmt.Sprint(i)))
	}
	n, err := q.Store.ForgetRequests(q.ctx(), time.Hour, 10)
	if n != 0 || err != nil {
		q.Errorf("%d young requests were forgotten, %v", n, err)
	}
	n, err = q.Store.ForgetRequests(q.ctx(), -time.Hour, 3)
	if n != 3 || err != nil {
		q.Errorf("%d requests were forgotten, %v", n, err)
	}
	tx := q.begin()
	for i := range 5 {
		if a := q.claim(tx, askedFor(fmt.Sprint(i))); (a != nil) != (i >= 3) {
			q.Errorf("request %d has the answer %+v", i, a)
		}
	}
}
