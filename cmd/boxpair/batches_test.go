package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// emptyOutbox has no parked event.
type emptyOutbox struct{ outboxOperator }

func (emptyOutbox) ListParked(context.Context, outbox.Filter) ([]outbox.Parked, error) {
	return nil, nil
}

// selectedRows returns n rows of seven shards.
func selectedRows(n int) []parked {
	all := make([]parked, n)
	for i := range all {
		all[i] = parked{ID: uuid.New(), Seq: int64(i + 10), shard: i * i % 7}
	}
	return all
}

// TestProgressIsSaidSoonAndThenNowAndThen of a long change, and never of its end.
func TestProgressIsSaidSoonAndThenNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		report := progressOf(&out, "shop")
		said := func(wait time.Duration, done, all int, want string) {
			t.Helper()
			time.Sleep(wait)
			out.Reset()
			if report(done, all); out.String() != want {
				t.Errorf("%d of %d: %q, want %q", done, all, out.String(), want)
			}
		}
		said(0, 1, 0, "")
		said(firstProgress, 100, 0, "shop: 100 selected so far\n")
		said(progressEvery-1, 2, 100, "")
		said(1, 3, 100, "shop: 3 of 100\n")
		said(progressEvery, 100, 100, "")
	})
}

// changed changes all by batches, and returns the filter of each batch.
func changed(t *testing.T, s *operators, all []parked, batch func(f inbox.Filter) ([]uuid.UUID, error)) (filters []inbox.Filter, ids []uuid.UUID, err error) {
	t.Helper()
	l := &letters{}
	l.filter = inbox.Filter{Topic: "order.placed", States: []inbox.State{inbox.Dead}}
	ids, err = l.batches(t.Context(), &process{stderr: io.Discard}, s, all, func(context.Context) ([]uuid.UUID, error) {
		if l.filter.Topic != "order.placed" || !slices.Equal(l.filter.States, []inbox.State{inbox.Dead}) {
			t.Errorf("filter of a batch is %+v", l.filter)
		}
		filters = append(filters, l.filter)
		return batch(l.filter)
	})
	if len(l.filter.IDs) > 0 || l.filter.After != 0 || l.filter.Limit != 0 {
		t.Errorf("filter is %+v afterwards", l.filter)
	}
	return filters, ids, err
}

// A change makes relays load the parked events of the changed shards again.
func TestBatchOfALongChangeIsOfOneShard(t *testing.T) {
	t.Parallel()
	all := selectedRows(1000)
	byID := make(map[uuid.UUID]*parked)
	for i := range all {
		byID[all[i].ID] = &all[i]
	}
	late := all[500].ID
	filters, ids, err := changed(t, &operators{outbox: emptyOutbox{}}, all, func(f inbox.Filter) ([]uuid.UUID, error) {
		if i := slices.Index(f.IDs, late); i >= 0 {
			return slices.Delete(slices.Clone(f.IDs), i, i+1), fmt.Errorf("redrive: %w", producer.ErrBeyondHorizon)
		}
		return f.IDs, nil
	})
	tried := 0
	for _, f := range filters {
		first := byID[f.IDs[0]]
		if f.After != first.Seq-1 || f.Limit != len(f.IDs) {
			t.Errorf("batch begins behind %d and has %d of at most %d events", f.After, len(f.IDs), f.Limit)
		}
		for _, id := range f.IDs {
			if byID[id].shard != first.shard {
				t.Fatalf("a batch of %d events has shards %d and %d", len(f.IDs), first.shard, byID[id].shard)
			}
		}
		tried += len(f.IDs)
	}
	want := slices.DeleteFunc(idsOf(all), func(id uuid.UUID) bool { return id == late })
	if !errors.Is(err, producer.ErrBeyondHorizon) || tried != len(all) || !slices.Equal(ids, want) {
		t.Errorf("%d of %d were tried, %d changed, error %v", tried, len(all), len(ids), err)
	}
}

// Over a network, a batch for each of 64 shards would take seconds.
func TestShortChangeIsOneBatch(t *testing.T) {
	t.Parallel()
	for _, s := range []*operators{{outbox: emptyOutbox{}}, {isInbox: true}} {
		all := selectedRows(100)
		filters, ids, err := changed(t, s, all, func(f inbox.Filter) ([]uuid.UUID, error) { return f.IDs, nil })
		if len(filters) != 1 || len(ids) != len(all) || err != nil {
			t.Errorf("inbox %v: %d batches, %d changed, error %v", s.isInbox, len(filters), len(ids), err)
		}
	}
}

// A row of a parked event whose event is not in the log has no dispatch ID.
func TestEventOutsideTheLogIsAloneInItsBatch(t *testing.T) {
	t.Parallel()
	all := selectedRows(9)
	all[4].ID = uuid.Nil
	filters, _, err := changed(t, &operators{outbox: emptyOutbox{}}, all, func(f inbox.Filter) ([]uuid.UUID, error) { return f.IDs, nil })
	if err != nil || len(filters) != 3 || len(filters[0].IDs) != 4 || len(filters[2].IDs) != 4 {
		t.Fatalf("batches are %+v, error %v", filters, err)
	}
	if f := filters[1]; len(f.IDs) != 0 || f.After != all[4].Seq-1 || f.Limit != 1 {
		t.Errorf("batch of the event without an ID is %+v", f)
	}
}
