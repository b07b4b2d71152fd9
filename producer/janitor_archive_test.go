package producer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

// fakeArchive is a store of which each list has one event, and a sink that may fail.
type fakeArchive struct {
	fakeRetention
	steps           []string
	sinkErr, delErr error
}

func (f *fakeArchive) list(rows *int, discarded bool) (outbox.Removable, error) {
	f.steps = append(f.steps, "list")
	list := outbox.Removable{Discarded: discarded, Full: *rows > 1}
	if *rows > 0 {
		list.Seqs, list.Events = []int64{int64(*rows)}, []outbox.Archived{{Seq: int64(*rows)}}
	}
	return list, nil
}

func (f *fakeArchive) ListDelivered(context.Context, time.Duration, time.Time, int) (outbox.Removable, error) {
	return f.list(&f.delivered, false)
}

func (f *fakeArchive) ListDiscarded(context.Context, time.Duration, int) (outbox.Removable, error) {
	return f.list(&f.discarded, true)
}

func (f *fakeArchive) RemoveListed(_ context.Context, _ time.Duration, list outbox.Removable) (outbox.Removed, error) {
	f.steps = append(f.steps, "remove")
	if f.delErr != nil {
		return outbox.Removed{}, f.delErr
	}
	rows := &f.delivered
	if list.Discarded {
		rows = &f.discarded
	}
	*rows -= len(list.Seqs)
	return outbox.Removed{Events: len(list.Seqs), Full: list.Full}, nil
}

func (f *fakeArchive) Archive(context.Context, []outbox.Archived) error {
	f.steps = append(f.steps, "archive")
	return f.sinkErr
}

var errSink = errors.New("fake disk is full")

func TestJanitorArchivesBeforeItRemoves(t *testing.T) {
	t.Parallel()
	f := &fakeArchive{fakeRetention: fakeRetention{delivered: 2, discarded: 1}}
	j := newJanitor(t, f, producer.JanitorConfig{Archive: f})
	r, err := j.RunOnce(t.Context())
	if err != nil || r.Events != 3 || r.Archived != 3 || !r.Done || j.Totals().Archived != 3 || len(f.limits) != 0 {
		t.Errorf("pass did %+v, %v", r, err)
	}
	want := strings.TrimSuffix(strings.Repeat("list archive remove ", 3), " ")
	if got := strings.Join(f.steps, " "); got != want {
		t.Errorf("steps are %s, want %s", got, want)
	}
}

func TestCountNeedsAStoreThatCounts(t *testing.T) {
	t.Parallel()
	f := &fakeRetention{delivered: 2}
	if c, err := newJanitor(t, f, producer.JanitorConfig{}).Count(t.Context(), 1); !errors.Is(err, errors.ErrUnsupported) || c.Delivered != 0 || f.delivered != 2 {
		t.Errorf("counted %+v, %v", c, err)
	}
}

func TestJanitorRemovesNothingThatIsNotArchived(t *testing.T) {
	t.Parallel()
	f := &fakeArchive{fakeRetention: fakeRetention{delivered: 2}, sinkErr: errSink}
	j := newJanitor(t, f, producer.JanitorConfig{Archive: f})
	r, err := j.RunOnce(t.Context())
	if !errors.Is(err, errSink) || r.Events+r.Archived != 0 || r.Done || f.delivered != 2 || strings.Contains(strings.Join(f.steps, " "), "remove") {
		t.Errorf("pass did %+v, %v in steps %v", r, err, f.steps)
	}
}

func TestJanitorArchivesAgainAfterAFailedRemoval(t *testing.T) {
	t.Parallel()
	f := &fakeArchive{fakeRetention: fakeRetention{delivered: 1}, delErr: errRetention}
	j := newJanitor(t, f, producer.JanitorConfig{Archive: f})
	if r, err := j.RunOnce(t.Context()); !errors.Is(err, errRetention) || r.Archived != 1 || f.delivered != 1 {
		t.Errorf("pass did %+v, %v", r, err)
	}
	f.delErr = nil
	if r, err := j.RunOnce(t.Context()); err != nil || r.Archived != 1 || r.Events != 1 || f.delivered != 0 {
		t.Errorf("pass did %+v, %v", r, err)
	}
}

func TestJanitorNeedsAStoreThatCanArchive(t *testing.T) {
	t.Parallel()
	_, err := producer.NewJanitor(&fakeRetention{}, producer.JanitorConfig{Archive: &fakeArchive{}})
	if err == nil || !strings.Contains(err.Error(), "Archive") {
		t.Errorf("error is %v", err)
	}
}
