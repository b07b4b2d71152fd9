package producer

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
)

func TestWritersTellWhereTheyHaveWritten(t *testing.T) {
	t.Parallel()
	now := outbox.Record{Shard: 3}
	later := outbox.Record{Shard: 63, DeliverAt: time.Now()}
	w := &Writer[int]{}
	if !w.wakes.None() {
		t.Errorf("a writer that has written nothing tells of %+v", w.wakes)
	}
	w.noteWakes([]outbox.Record{now, now})
	if want := (wakeup.Wakeup{Shards: 1 << 3}); w.wakes != want {
		t.Errorf("news are %+v, want %+v", w.wakes, want)
	}
	w.noteWakes([]outbox.Record{later})
	if want := (wakeup.Wakeup{Shards: 1<<3 | 1<<63, Deferred: true}); w.wakes != want || w.wakes.Everywhere() {
		t.Errorf("news are %+v, want %+v", w.wakes, want)
	}
	s := &wakeup.Signal{}
	got, stop := s.Subscribe(nil)
	defer stop()
	s.Send(wakeup.Wakeup{Shards: 1 << 3})
	s.Send(wakeup.Wakeup{Shards: 1 << 63, Deferred: true})
	<-got.Woken
	if n := got.Take(); n != w.wakes || !got.Take().None() {
		t.Errorf("a subscriber is told of %+v, want %+v once", n, w.wakes)
	}
}
