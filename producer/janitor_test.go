package producer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

// fakeRetention is a store with so many rows past their retention. Work, if not nil, takes the time
// of a batch of rows.
type fakeRetention struct {
	mu                   sync.Mutex
	delivered, discarded int
	work                 func(rows int)
	err                  error
	limits               []int
	afters               []time.Time
}

var errRetention = errors.New("fake database is down")

func (f *fakeRetention) take(rows *int, limit int) (outbox.Removed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits = append(f.limits, limit)
	if f.err != nil {
		return outbox.Removed{}, f.err
	}
	n := min(*rows, limit)
	*rows -= n
	if f.work != nil {
		f.work(n)
	}
	return outbox.Removed{Events: n, Attempts: 2 * n, Receipts: 1, Full: n == limit, Through: time.Unix(int64(len(f.limits)), 0)}, nil
}

func (f *fakeRetention) RemoveDelivered(_ context.Context, _ time.Duration, after time.Time, limit int) (outbox.Removed, error) {
	f.afters = append(f.afters, after)
	return f.take(&f.delivered, limit)
}

func (f *fakeRetention) RemoveDiscarded(_ context.Context, _ time.Duration, limit int) (outbox.Removed, error) {
	return f.take(&f.discarded, limit)
}

func newJanitor(t *testing.T, store outbox.JanitorStore, cfg producer.JanitorConfig) *producer.Janitor {
	t.Helper()
	j, err := producer.NewJanitor(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestJanitorPassRemovesAllAndReportsProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &fakeRetention{delivered: 50_000, discarded: 300, work: func(rows int) { time.Sleep(time.Duration(rows) * 20 * time.Microsecond) }}
		var reports []producer.JanitorReport
		j := newJanitor(t, store, producer.JanitorConfig{Progress: func(r producer.JanitorReport) { reports = append(reports, r) }})
		begun := time.Now()
		r, err := j.RunOnce(t.Context())
		if err != nil || r.Events != 50_300 || r.Attempts != 100_600 || !r.Done || store.delivered+store.discarded != 0 {
			t.Fatalf("pass did %+v, %v", r, err)
		}
		if took := time.Since(begun); took < 1900*time.Millisecond || took > 2100*time.Millisecond {
			t.Errorf("a second of work took %v, want as long again for others", took)
		}
		if r.LongestBatch < 45*time.Millisecond || r.LongestBatch > 55*time.Millisecond {
			t.Errorf("longest batch took %v, want about 50 ms", r.LongestBatch)
		}
		if int64(len(reports)) != r.Batches+1 || !reports[len(reports)-1].Done || reports[0].Done || reports[0].Events != 200 {
			t.Errorf("%d reports of %d batches, first %+v", len(reports), r.Batches, reports[0])
		}
		if total := j.Totals(); total.Events != r.Events || total.Batches != r.Batches {
			t.Errorf("totals are %+v", total)
		}
		for i, after := range store.afters {
			if i == 0 != after.IsZero() || i > 0 && after.Unix() != int64(i) {
				t.Fatalf("batch %d looks from %v on", i, after)
			}
		}
	})
}

func TestJanitorBatchesShrinkWhenTheDatabaseIsBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		perRow := 5 * time.Microsecond
		store := &fakeRetention{delivered: 100_000, work: func(rows int) { time.Sleep(time.Duration(rows) * perRow) }}
		j := newJanitor(t, store, producer.JanitorConfig{Share: 1, Progress: func(r producer.JanitorReport) {
			if r.Events > 10_000 {
				perRow = time.Millisecond
			}
		}})
		if _, err := j.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		most, last := 0, store.limits[len(store.limits)-2] // the last one asks for discarded events
		for _, n := range store.limits {
			most = max(most, n)
		}
		if most < 1000 || last > 100 {
			t.Errorf("batches are up to %d, and %d in the end", most, last)
		}
	})
}

func TestJanitorRunsAtIntervalsUntilItIsStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &fakeRetention{err: errRetention}
		var log bytes.Buffer
		j := newJanitor(t, store, producer.JanitorConfig{Interval: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx) }()
		synctest.Wait()
		if !strings.Contains(log.String(), errRetention.Error()) {
			t.Errorf("log is %q", log.String())
		}
		store.mu.Lock()
		store.err, store.delivered = nil, 1000
		store.mu.Unlock()
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if store.delivered != 0 || !strings.Contains(log.String(), "events=1000") {
			t.Errorf("%d left, log is %q", store.delivered, log.String())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestJanitorPassEndsWithItsContext(t *testing.T) {
	t.Parallel()
	store := &fakeRetention{delivered: 1 << 30}
	ctx, cancel := context.WithCancel(t.Context())
	j := newJanitor(t, store, producer.JanitorConfig{Progress: func(producer.JanitorReport) { cancel() }})
	r, err := j.RunOnce(ctx)
	if !errors.Is(err, context.Canceled) || r.Events != 200 || r.Done {
		t.Errorf("pass did %+v, %v", r, err)
	}
}

func TestJanitorConfigErrorsNameTheField(t *testing.T) {
	t.Parallel()
	_, err := producer.NewJanitor(nil, producer.JanitorConfig{
		Retention: time.Millisecond, Interval: -1, BatchTime: -1, MaxBatch: -1, Share: 1.5,
	})
	for _, word := range []string{"store is nil", "Retention", "Interval", "BatchTime", "MaxBatch", "Share"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v does not name %s", err, word)
		}
	}
}
