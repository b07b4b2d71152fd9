package storetest

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// ControlFixture has no pauses and no buckets, for one test.
type ControlFixture struct {
	Store control.Store
	// User is the database's user, as a pause names it. Empty means that the database has no users.
	User string
}

// Control tests that a store keeps the contract of [control.Store]. open returns a new, empty store
// for each test, and closes it in t.Cleanup. The tests run in parallel. [Producer] and [Consumer]
// include these tests.
func Control(t *testing.T, open func(t *testing.T) ControlFixture) {
	t.Helper()
	runGroups(t, []group[controlTest]{{"control", controlTests()}}, nil, func(t *testing.T, test controlTest) {
		test.run(&controlRig{rig: rig{t}, ControlFixture: open(t)})
	})
}

type controlTest struct {
	fact string
	run  func(c *controlRig)
}

func (x controlTest) named() string { return x.fact }

func controlTests() []controlTest {
	return []controlTest{
		{"pauses in force are listed by kind and name", pausesAreListed},
		{"texts of pauses come back unchanged", pausesKeepTexts},
		{"names of pauses differ by any byte", pausesDifferByAnyByte},
		{"pause takes the place of the one before, and keeps its beginning", pauseReplaces},
		{"pause that is over begins anew", pauseBeginsAnew},
		{"pause ends by itself", pauseEndsByItself},
		{"pause ends once", pauseEndsOnce},
		{"pause names the database's user", pauseNamesUser},
		{"new bucket is full", newBucketIsFull},
		{"request is granted no more than it wants", grantsWhatIsWanted},
		{"empty bucket says when it has a token", emptyBucketSaysWhen},
		{"bucket below a token a second holds one", slowBucketHoldsOne},
		{"new rate holds from the next request on", rateChanges},
		{"buckets are independent", bucketsAreIndependent},
		{"concurrent takers share a bucket", takersShare},
	}
}

func outboxControlTests[TX any]() (list []outboxTest[TX]) {
	for _, test := range controlTests() {
		list = append(list, outboxTest[TX]{fact: test.fact, run: func(o *outboxRig[TX]) {
			test.run(&controlRig{o.rig, ControlFixture{o.Store, o.User}})
		}})
	}
	return list
}

func inboxControlTests[TX any]() (list []inboxTest[TX]) {
	for _, test := range controlTests() {
		list = append(list, inboxTest[TX]{fact: test.fact, run: func(i *inboxRig[TX]) {
			test.run(&controlRig{i.rig, ControlFixture{i.Store, i.User}})
		}})
	}
	return list
}

// controlRig is a test with its store.
type controlRig struct {
	rig
	ControlFixture
}

// pauses returns the pauses in force.
func (c *controlRig) pauses() []control.Pause {
	c.Helper()
	list, err := c.Store.Pauses(c.ctx())
	c.ok(err)
	return list
}

// pause sets pauses.
func (c *controlRig) pause(pauses ...control.Pause) {
	c.Helper()
	for _, p := range pauses {
		c.ok(c.Store.SetPause(c.ctx(), p))
	}
}

// expectPauses checks the pauses in force, in this order, but for their Since.
func (c *controlRig) expectPauses(want ...control.Pause) []control.Pause {
	c.Helper()
	got := c.pauses()
	equal := slices.EqualFunc(got, want, func(a, b control.Pause) bool {
		same := a.Until.Equal(b.Until) && a.Until.IsZero() == b.Until.IsZero()
		a.Since, b.Since, a.Until, b.Until = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		return same && a == b
	})
	if !equal {
		c.Fatalf("pauses are %+v, want %+v", got, want)
	}
	for _, p := range got {
		if p.Since.IsZero() {
			c.Fatalf("pause %s %s began at no time", p.Kind, p.Name)
		}
	}
	return got
}

// end ends a pause, and checks whether it was in force.
func (c *controlRig) end(kind control.Kind, name string, want bool) {
	c.Helper()
	ended, err := c.Store.EndPause(c.ctx(), kind, name)
	c.ok(err)
	if ended != want {
		c.Fatalf("the end of the pause of %s %s says %v, want %v", kind, name, ended, want)
	}
}

func pauseOf(kind control.Kind, name string) control.Pause {
	return control.Pause{Kind: kind, Name: name, Reason: "maintenance", By: "alice"}
}

func pausesAreListed(c *controlRig) {
	c.expectPauses()
	later := time.Now().Add(long).Truncate(time.Microsecond)
	all := []control.Pause{
		pauseOf(control.Consumer, "stock/*"), pauseOf(control.Consumer, "stock/reserve"),
		pauseOf(control.Downstream, "analytics"),
		pauseOf(control.Topic, "B"), pauseOf(control.Topic, "a"), pauseOf(control.Topic, "a.#"), pauseOf(control.Topic, "ä"),
	}
	all[1].Until, all[3].Until = later, later
	all[4].By, all[4].Reason = "bob", "order 4711 is wrong"
	reversed := slices.Clone(all)
	slices.Reverse(reversed)
	c.pause(reversed...)
	got := c.expectPauses(all...)
	for _, p := range got {
		if first := got[len(got)-1].Since; p.Since.Before(first) { // the last of the list began first
			c.Errorf("pause %s %s began at %v, before %v", p.Kind, p.Name, p.Since, first)
		}
	}
}

func pausesKeepTexts(c *controlRig) {
	text := "it's \"quoted\" \\ back\\\\slash\\n\n%s ? $1 {name} {{name}} ümläut 事件 🐇 "
	var want []control.Pause
	for _, kind := range []control.Kind{control.Consumer, control.Downstream, control.Topic} {
		want = append(want, control.Pause{Kind: kind, Name: text, Reason: text + strings.Repeat("x", 1<<10-len(text)), By: text})
	}
	want[1].Name, want[1].By = strings.Repeat("ä", 127)+"n", strings.Repeat("ö", 127)+"b" // as long as may be
	c.pause(want...)
	c.expectPauses(want...)
	for _, p := range want {
		c.end(p.Kind, p.Name, true)
	}
	c.expectPauses()
}

func pausesDifferByAnyByte(c *controlRig) {
	var want []control.Pause
	for _, name := range []string{"NAME", "Name", "name", "name ", "náme"} {
		want = append(want, pauseOf(control.Topic, name))
	}
	slices.SortFunc(want, func(a, b control.Pause) int { return cmp.Compare(a.Name, b.Name) })
	c.pause(want...)
	c.expectPauses(want...)
	c.end(control.Topic, "nAME", false)
	c.end(control.Topic, "name  ", false)
	c.end(control.Topic, want[0].Name, true)
	c.expectPauses(want[1:]...)
}

func pauseReplaces(c *controlRig) {
	first, other := pauseOf(control.Topic, "orders"), pauseOf(control.Downstream, "orders")
	c.pause(first, other)
	began := c.expectPauses(other, first)
	second := first
	second.Until, second.Reason, second.By = time.Now().Add(long).Truncate(time.Microsecond), "still", "bob"
	second.Since = time.Now().Add(-long) // is ignored
	for _, p := range []control.Pause{second, first} {
		c.pause(p)
		if now := c.expectPauses(other, p); !now[1].Since.Equal(began[1].Since) {
			c.Errorf("the pause began at %v, and after its replacement at %v", began[1].Since, now[1].Since)
		}
	}
}

func pauseBeginsAnew(c *controlRig) {
	over := pauseOf(control.Topic, "over")
	over.Until = time.Now().Add(-long)
	between, again := pauseOf(control.Topic, "between"), pauseOf(control.Topic, "over")
	c.pause(over, between)
	c.eventually("the clock goes on", func() bool {
		c.pause(over, again)
		now := c.expectPauses(between, again)
		c.end(again.Kind, again.Name, true)
		return now[1].Since.After(now[0].Since)
	})
}

func pauseEndsByItself(c *controlRig) {
	over, soonOver := pauseOf(control.Topic, "over"), pauseOf(control.Topic, "soon over")
	over.Until, soonOver.Until = time.Now().Add(-long), time.Now().Add(50*time.Millisecond)
	stays := pauseOf(control.Topic, "stays")
	c.pause(over)
	c.expectPauses()
	c.end(over.Kind, over.Name, false)
	c.pause(stays, soonOver, over)
	c.eventually("the pause is over", func() bool { return len(c.pauses()) == 1 })
	c.expectPauses(stays)
	c.end(soonOver.Kind, soonOver.Name, false)
	c.end(over.Kind, over.Name, false)
	c.expectPauses(stays)
}

func pauseEndsOnce(c *controlRig) {
	topic, downstream := pauseOf(control.Topic, "name"), pauseOf(control.Downstream, "name")
	c.end(topic.Kind, topic.Name, false)
	c.pause(topic, downstream)
	c.end(topic.Kind, "nam", false)
	c.end(topic.Kind, topic.Name, true)
	c.expectPauses(downstream)
	c.end(topic.Kind, topic.Name, false)
	c.pause(topic)
	c.expectPauses(downstream, topic)
}

func pauseNamesUser(c *controlRig) {
	p := pauseOf(control.Topic, "orders")
	named := p
	p.By = ""
	c.pause(p)
	p.By = c.User
	c.expectPauses(p)
	c.pause(named)
	c.expectPauses(named)
	p.By = ""
	c.pause(p)
	p.By = c.User
	c.expectPauses(p)
}

// verySlow is a rate at which a test sees no new token.
const verySlow = 1.0 / 3600

func (c *controlRig) take(name string, perSecond float64, want int) (granted int, next time.Duration) {
	c.Helper()
	granted, next, err := c.Store.TakeTokens(c.ctx(), name, perSecond, want)
	c.ok(err)
	switch {
	case granted < 0 || granted > want:
		c.Fatalf("granted are %d of %d tokens", granted, want)
	case granted == 0 && next <= 0:
		c.Fatalf("no token is granted, and the next one comes in %v", next)
	}
	return granted, next
}

func (c *controlRig) expectGranted(name string, perSecond float64, want, granted int) {
	c.Helper()
	if got, _ := c.take(name, perSecond, want); got != granted {
		c.Fatalf("of %s, %d tokens are granted, want %d", name, got, granted)
	}
}

func newBucketIsFull(c *controlRig) {
	c.expectGranted("hundred", 100, 1000, 100)
	c.expectGranted("two and a half", 2.5, 1000, 2)
	c.expectGranted("one", 1, 1000, 1)
	c.expectGranted("slow", verySlow, 1000, 1)
	c.expectGranted("million", 1e6, 2e6, 1e6)
}

func grantsWhatIsWanted(c *controlRig) {
	c.expectGranted("bucket", 10, 3, 3)
	c.expectGranted("bucket", 10, 1, 1)
	c.expectGranted("bucket", 10, 6, 6)
}

func emptyBucketSaysWhen(c *controlRig) {
	const rate = 4.0
	for {
		granted, next := c.take("bucket", rate, 1000)
		if granted > 0 {
			continue // at first it is full, and a slow machine fills it
		}
		if next > time.Second/rate {
			c.Fatalf("the next token comes in %v", next)
		}
		select {
		case <-time.After(next + 10*time.Millisecond): // clocks may differ a little
		case <-c.ctx().Done():
		}
		if granted, next = c.take("bucket", rate, 1000); granted == 0 {
			c.Fatalf("there is no token at the time, but in %v", next)
		}
		return
	}
}

func slowBucketHoldsOne(c *controlRig) {
	c.expectGranted("bucket", verySlow, 2, 1)
	for range 3 {
		granted, next := c.take("bucket", verySlow, 1)
		if granted != 0 || next > time.Hour || next < time.Hour-2*patience {
			c.Fatalf("granted are %d tokens, and the next comes in %v", granted, next)
		}
	}
	if _, next := c.take("other", verySlow/1000, 1); next < 0 {
		c.Fatalf("the next token comes in %v", next)
	}
	if granted, next := c.take("other", verySlow/1000, 1); granted != 0 || next < time.Hour {
		c.Fatalf("granted are %d tokens, and the next comes in %v", granted, next)
	}
}

func rateChanges(c *controlRig) {
	c.expectGranted("bucket", 100, 1, 1)
	c.expectGranted("bucket", verySlow, 100, 1) // holds no more now
	c.expectGranted("bucket", verySlow, 100, 0)
	c.eventually("the bucket fills at the new rate", func() bool {
		granted, _ := c.take("bucket", 100, 1)
		return granted == 1
	})
}

func bucketsAreIndependent(c *controlRig) {
	names := []string{"a", "A", "a ", "ä'\"\\", strings.Repeat("n", 255), strings.Repeat("n", 254) + "m"}
	for _, name := range names {
		c.expectGranted(name, verySlow, 1, 1)
	}
	for _, name := range names {
		c.expectGranted(name, verySlow, 1, 0)
	}
}

// takersShare: all of them get what was in the bucket and what it gained, and nothing more.
func takersShare(c *controlRig) {
	const takers, requests, want, rate = 8, 20, 5, 50.0
	begun := time.Now()
	var mu sync.Mutex
	sum := 0
	var all []<-chan error
	for range takers {
		all = append(all, c.async(func() error {
			for range requests {
				granted, _, err := c.Store.TakeTokens(c.ctx(), "bucket", rate, want)
				if err != nil {
					return err
				}
				mu.Lock()
				sum += granted
				mu.Unlock()
			}
			return nil
		}))
	}
	for _, result := range all {
		c.ok(c.result(result))
	}
	// A clock that is set, or slewed, may differ a little from the one of this process.
	most := control.BucketSize(rate) + rate*(time.Since(begun).Seconds()*1.01+0.01)
	if float64(sum) > most || sum < int(control.BucketSize(rate)) {
		c.Errorf("%d tokens are granted, want %v to %v", sum, control.BucketSize(rate), most)
	}
}
