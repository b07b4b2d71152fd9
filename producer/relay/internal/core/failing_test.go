package core

import (
	"errors"
	"testing"
	"time"
)

func TestStatementThatGoesOnFailingIsToldLessAndLess(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(10 * time.Second)
	r.store.Fail = func(step string) error {
		if step == "Heartbeat" {
			return errors.New("connection refused")
		}
		return nil
	}
	r.run(10 * time.Minute)
	if n := rel.noted("statement failed"); n < 10 || n > 20 {
		t.Errorf("%d records in ten minutes", n)
	}
	r.store.Fail = nil
	r.run(time.Minute)
	before := rel.noted("statement failed")
	r.store.Fail = func(string) error { return errors.New("again") }
	r.run(5 * time.Second)
	if rel.noted("statement failed") == before {
		t.Error("a new failure is not told")
	}
	r.store.Fail = nil
}
