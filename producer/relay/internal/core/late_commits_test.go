package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// sameShard returns a key of the same shard as key.
func sameShard(key string) string {
	for c := 'a'; ; c++ {
		if other := "other " + string(c); idgen.Shard(other, [16]byte{}) == idgen.Shard(key, [16]byte{}) {
			return other
		}
	}
}

// The reader has passed the place of an event that is not committed yet. When it
// is, and the next event of its key behind it, above the reader's mark, both are seen at once:
// the first one has to go first, whatever the reader is at.
func TestAnEventThatCommitsLateIsNotOvertakenByTheNextOfItsKey(t *testing.T) {
	t.Parallel()
	for wait := range 100 {
		r := newRig(t)
		late := r.store.Begin()
		first := late.Write("topic", "key")
		passed := r.store.Add("topic", sameShard("key"))
		rel := r.start(Options{})
		r.run(time.Second + time.Duration(wait)*time.Millisecond)
		late.Commit()
		next := r.store.Add("topic", "key")
		rel.core.Wake(r.now, wakeup.All)
		r.run(2 * time.Second)
		r.drained()
		if got, want := r.sent(), []int64{passed, first, next}; !slices.Equal(got, want) {
			t.Fatalf("sent %v, want %v", got, want)
		}
	}
}

func TestWhatIsInMemoryIsNotReadAgainWhileSomebodyWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	open := r.store.Begin()
	open.Write("topic", "late")
	for range 100 {
		r.store.Add("topic", "key")
	}
	rel := r.start(Options{MaxPerKey: 1000})
	rel.mute = func(rigSend) bool { return true }
	r.run(2 * time.Second)
	if r.store.Fetched > 110 {
		t.Errorf("%d rows fetched for 100 events", r.store.Fetched)
	}
	open.Commit()
	rel.free()
	r.run(2 * time.Second)
	r.drained()
}

// A row that is read by its number must not take the mark with it, past rows that nobody has read.
func TestAMarkThatIsSetBackDuringAReadPassesNoRow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{FetchSize: 4})
	r.run(time.Second)
	var want []int64
	for range 20 {
		want = append(want, r.store.Add("topic", "key"))
	}
	sh := rel.core.shards[r.store.Log[want[0]].Shard]
	sh.low, sh.known = want[19], want[19]
	sh.want(want[15]) // as after a move of a deferred event
	rel.delay = func(cl *Call) bool { return cl.fetch() != nil && len(cl.fetch().Rows) > 0 }
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	if len(rel.delayed) != 1 {
		t.Fatal("no read was under way")
	}
	sh.rewind(0)
	rel.free()
	reads := 0
	rel.hold = func(cl *Call) bool { // the next read brings rows that were passed
		if cl.fetch() != nil {
			reads++
		}
		return reads > 1
	}
	r.run(time.Second)
	rel.free()
	r.run(10 * time.Second)
	r.drained()
	if got := r.sent(); !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}

// TestSampleOfManyWritersIsQuick: the core works under one lock, so a sample that compared each
// writer with each other would hold up all sends.
func TestSampleOfManyWritersIsQuick(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	names := make([]string, 20_000)
	for i := range names {
		names[i] = fmt.Sprint("writer", i)
	}
	least := time.Hour
	for i := range 6 { // a third of them are others each time
		sampled := names[i%2*len(names)/4:][:len(names)*3/4]
		began := time.Now()
		rel.core.late.sample(&Call{Statement: &statement.Writers{Names: sampled}})
		if i > 0 { // which has writers to compare with
			least = min(least, time.Since(began))
		}
	}
	if least > 250*time.Millisecond {
		t.Errorf("a sample of %d writers took %v", len(names)*3/4, least)
	}
}
