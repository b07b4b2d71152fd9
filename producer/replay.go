package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/producer/internal/field"
	"github.com/boxpair/boxpair/store/outbox"
)

func isAll(s *outbox.Selection) bool {
	return len(s.IDs) == 0 && s.Topic == "" && s.Key == "" && s.From.IsZero() && s.To.IsZero()
}

// Replay selects the events that [Outbox.Replay] sends again.
type Replay struct {
	outbox.Selection
	// All must be set if Selection selects everything.
	All bool
	// After continues a replay behind the event with this Seq: ReplayReport.Through of an earlier
	// replay. Defaults to 0, the beginning.
	After int64
	// Limit is the most events to send again. Defaults to 0, no limit.
	Limit int
	// InQueue is the most replayed events that wait in the queue at once, so that a replay does not
	// delay live events for long. A relay is told of replayed events at once. A relay that no signal
	// reaches notices them when it renews its leases, every third of relay.Config.LeaseTTL: with the
	// default of LeaseTTL, an InQueue of 1000 then makes at least some 300 events a second. Defaults
	// to 1000.
	InQueue int
	// Reason says who replays the events and why, in at most 1 KiB. Each event's history keeps it.
	// Defaults to "".
	Reason string
	// Force also sends events beyond their re-send horizon.
	Force bool
	// Progress is called after each batch. Defaults to none.
	Progress func(ReplayReport)
}

// ReplayReport counts the work of a replay.
type ReplayReport struct {
	// Replayed is how many events were queued again.
	Replayed int64
	// Through is the place in the log that the replay has reached.
	Through int64
	// Done tells that nothing is left to replay.
	Done bool
}

const (
	defaultInQueue = 1000
	replayScan     = 10_000
	// placeSlack is how far stamps may differ from the order of the log.
	placeSlack     = time.Minute
	replayPoll     = 20 * time.Millisecond
	replayPollMost = time.Second
)

// Replay sends delivered events again that are still retained, under their old dispatch IDs: a
// consumer that has applied an event skips the copy, a new consumer applies the event. Replay skips
// undelivered and discarded events.
//
// Events of one key are replayed in order, with new events of the key in between. If a key waits
// for a failed event, replayed events of the key wait as well, ahead of the failed event. Relays
// send the events. Replay waits before each batch until the batch before has left the queue,
// however long that takes, and returns when the last events are queued.
//
// Unless r.Force, Replay ends before the first event whose re-send horizon ([Config].ResendFor) is
// over; the error wraps [ErrBeyondHorizon]. On an error, or when ctx ends, the report tells how far
// the replay has come. Repeating a replay is safe: events may be sent once more.
func (o *Outbox[TX]) Replay(ctx context.Context, r Replay) (ReplayReport, error) {
	report := ReplayReport{Through: r.After}
	if err := r.check(); err != nil {
		return report, err
	}
	if r.InQueue == 0 {
		r.InQueue = defaultInQueue
	}
	if !r.From.IsZero() {
		place, err := o.store.Place(ctx, r.From.Add(-placeSlack))
		if err != nil {
			return report, fmt.Errorf("replay: %w", err)
		}
		report.Through = max(report.Through, place)
	}
	var queued []outbox.Requeued // some may have left the queue
	for !report.Done {
		if len(queued) >= r.InQueue {
			if err := o.drained(ctx, queued); err != nil {
				return report, fmt.Errorf("replay: %w", err)
			}
			queued = queued[:0]
		}
		batch, err := o.replayBatch(ctx, &r, &report, r.InQueue-len(queued))
		if err != nil {
			return report, fmt.Errorf("replay: %w", err)
		}
		queued = append(queued, batch...)
		if r.Progress != nil {
			r.Progress(report)
		}
	}
	return report, nil
}

func (r *Replay) check() error {
	var errs []error
	if isAll(&r.Selection) != r.All {
		errs = append(errs, errors.New("All: must be set if no filter is given by IDs, Topic, Key, From or To, and only then"))
	}
	if !r.From.IsZero() && !r.To.IsZero() && !r.From.Before(r.To) {
		errs = append(errs, errors.New("From: is not before To"))
	}
	for _, n := range []struct {
		name  string
		value int64
	}{{"After", r.After}, {"Limit", int64(r.Limit)}, {"InQueue", int64(r.InQueue)}} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", n.name, n.value))
		}
	}
	if len(r.Reason) > maxReason {
		errs = append(errs, fmt.Errorf("Reason: has %d bytes, more than %d", len(r.Reason), maxReason))
	}
	errs = append(errs, field.Value("Reason", r.Reason))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

// replayBatch looks through a part of the log and queues the selected events.
func (o *Outbox[TX]) replayBatch(ctx context.Context, r *Replay, report *ReplayReport, limit int) ([]outbox.Requeued, error) {
	if r.Limit > 0 {
		limit = min(limit, r.Limit-int(report.Replayed))
	}
	page, err := o.store.Retained(ctx, r.Selection, report.Through, replayScan, limit)
	if err != nil {
		return nil, err
	}
	seqs := make([]int64, len(page.Events))
	for i, e := range page.Events {
		if e.Expired && !r.Force {
			return nil, fmt.Errorf("event %d (dispatch %s), which could be sent until %s: %w",
				e.Seq, e.ID, e.ResendUntil.UTC().Format(time.RFC3339), ErrBeyondHorizon)
		}
		seqs[i] = e.Seq
	}
	queued, err := o.requeue(ctx, seqs, r.Reason)
	if err != nil {
		return nil, err
	}
	report.Replayed += int64(len(queued))
	report.Through = page.Through
	report.Done = page.End || r.Limit > 0 && report.Replayed >= int64(r.Limit) ||
		!r.To.IsZero() && page.Stamp.After(r.To.Add(placeSlack))
	return queued, nil
}

func (o *Outbox[TX]) requeue(ctx context.Context, seqs []int64, reason string) ([]outbox.Requeued, error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	queued, err := o.store.Requeue(ctx, seqs, reason)
	if err != nil {
		return nil, err
	}
	if len(queued) > 0 {
		o.cfg.Logger.InfoContext(ctx, "events replayed", "events", len(queued), "reason", reason,
			"first_dispatch_id", queued[0].ID, "last_dispatch_id", queued[len(queued)-1].ID)
		o.changed(ctx)
	}
	return queued, nil
}

// drained waits until replayed events have left the queue.
func (o *Outbox[TX]) drained(ctx context.Context, rows []outbox.Requeued) error {
	wait := replayPoll
	for {
		n, err := o.store.StillQueued(ctx, rows)
		if err != nil || n == 0 {
			return err
		}
		if err := pace.Sleep(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, replayPollMost)
	}
}
