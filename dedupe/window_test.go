package dedupe_test

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newWindow(t testing.TB, size int) *dedupe.Window {
	t.Helper()
	w, err := dedupe.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// id returns a dispatch ID that depends on n alone.
func id(n int) uuid.UUID {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[8:], uint64(n))
	return u
}

func expect(t *testing.T, w *dedupe.Window, u uuid.UUID, d transport.Digest, want dedupe.Verdict) {
	t.Helper()
	if got := w.Seen(u, d); got != want {
		t.Errorf("Seen(%s, %s) = %v, want %v", u, d, got, want)
	}
}

func TestNothingIsSeenBeforeItWasAdded(t *testing.T) {
	t.Parallel()
	w := newWindow(t, 10)
	for range 2 { // Seen does not add
		expect(t, w, id(1), transport.Digest{1}, dedupe.Miss)
	}
	if w.Len() != 0 {
		t.Errorf("Len = %d after lookups only", w.Len())
	}
}

func TestEqualContentIsADuplicateAndOtherContentIsNot(t *testing.T) {
	t.Parallel()
	w := newWindow(t, 10)
	w.Add(w.Term(), id(1), transport.Digest{1})
	w.Add(w.Term(), id(2), transport.Digest{})
	expect(t, w, id(1), transport.Digest{1}, dedupe.Duplicate)
	expect(t, w, id(1), transport.Digest{2}, dedupe.Altered)
	expect(t, w, id(1), transport.Digest{}, dedupe.Duplicate) // an absent digest matches
	expect(t, w, id(2), transport.Digest{2}, dedupe.Duplicate)
}

func TestWindowOfOneHoldsTheLastOnly(t *testing.T) {
	t.Parallel()
	w := newWindow(t, 1)
	w.Add(w.Term(), id(1), transport.Digest{})
	expect(t, w, id(1), transport.Digest{}, dedupe.Duplicate)
	w.Add(w.Term(), id(2), transport.Digest{})
	expect(t, w, id(1), transport.Digest{}, dedupe.Miss)
	expect(t, w, id(2), transport.Digest{}, dedupe.Duplicate)
	if w.Len() != 1 {
		t.Errorf("Len = %d, want 1", w.Len())
	}
}

func TestFullWindowForgetsWhatWasNotUsedForLongest(t *testing.T) {
	t.Parallel()
	w := newWindow(t, 2)
	w.Add(w.Term(), id(1), transport.Digest{})
	w.Add(w.Term(), id(2), transport.Digest{})
	expect(t, w, id(1), transport.Digest{}, dedupe.Duplicate) // now recently used
	w.Add(w.Term(), id(3), transport.Digest{})
	expect(t, w, id(1), transport.Digest{}, dedupe.Duplicate)
	expect(t, w, id(2), transport.Digest{}, dedupe.Miss)
}

func TestForgetTurnsEverythingIntoMisses(t *testing.T) {
	t.Parallel()
	w := newWindow(t, 10)
	before := w.Term()
	w.Add(before, id(1), transport.Digest{})
	w.Forget()
	expect(t, w, id(1), transport.Digest{}, dedupe.Miss)

	// A transaction of the earlier term ends now.
	w.Add(before, id(2), transport.Digest{})
	expect(t, w, id(2), transport.Digest{}, dedupe.Miss)

	w.Add(w.Term(), id(3), transport.Digest{})
	expect(t, w, id(3), transport.Digest{}, dedupe.Duplicate)
}

func TestNothingOfAnEarlierTermIsSeenHoweverAddAndForgetRace(t *testing.T) {
	t.Parallel()
	w := newWindow(t, 1000)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for i := range 200 {
				term := w.Term()
				w.Add(term, id(n*1000+i), transport.Digest{})
				if w.Seen(id(n*1000+i), transport.Digest{}) == dedupe.Duplicate && w.Term() == term {
					continue
				}
				w.Forget()
			}
		})
	}
	wg.Wait()
	w.Forget()
	for n := range 8 {
		for i := range 200 {
			expect(t, w, id(n*1000+i), transport.Digest{}, dedupe.Miss)
		}
	}
}

func TestSizeIsCheckedAndDefaults(t *testing.T) {
	t.Parallel()
	if _, err := dedupe.New(-1); err == nil {
		t.Error("a negative size was accepted")
	}
	w := newWindow(t, 0)
	for n := range dedupe.DefaultSize + 10 {
		w.Add(w.Term(), id(n), transport.Digest{})
	}
	if w.Len() != dedupe.DefaultSize {
		t.Errorf("Len = %d, want %d", w.Len(), dedupe.DefaultSize)
	}
}

func TestVerdictsHaveNames(t *testing.T) {
	t.Parallel()
	for v, want := range map[dedupe.Verdict]string{
		dedupe.Miss: "miss", dedupe.Duplicate: "duplicate", dedupe.Altered: "altered", 9: "verdict(9)",
	} {
		if got := v.String(); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
}

func BenchmarkHit(b *testing.B) {
	w := newWindow(b, 0)
	for n := range dedupe.DefaultSize {
		w.Add(w.Term(), id(n), transport.Digest{1})
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if w.Seen(id(n%dedupe.DefaultSize), transport.Digest{1}) != dedupe.Duplicate {
			b.Fatal("miss")
		}
		n++
	}
}

func BenchmarkMiss(b *testing.B) {
	w := newWindow(b, 0)
	for n := range dedupe.DefaultSize {
		w.Add(w.Term(), id(n), transport.Digest{1})
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if w.Seen(id(-1-n), transport.Digest{1}) != dedupe.Miss {
			b.Fatal("hit")
		}
		n++
	}
}

// BenchmarkAdd adds to a full window: every Add forgets an ID.
func BenchmarkAdd(b *testing.B) {
	w := newWindow(b, 0)
	for n := range dedupe.DefaultSize {
		w.Add(w.Term(), id(-1-n), transport.Digest{1})
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		w.Add(w.Term(), id(n), transport.Digest{1})
		n++
	}
}

// BenchmarkEntry reports how many bytes an entry of a full window costs.
func BenchmarkEntry(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		w := newWindow(b, 0)
		for n := range dedupe.DefaultSize {
			w.Add(w.Term(), id(n), transport.Digest{1})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/dedupe.DefaultSize, "B/entry")
		runtime.KeepAlive(w)
	}
}
