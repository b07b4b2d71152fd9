package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/outbox"
)

// JanitorConfig tunes a [Janitor]. The zero value is complete.
type JanitorConfig struct {
	// Retention is how long events are kept after they were delivered or discarded: for replay, for
	// inspection, and to recognize a repeated write. Defaults to 7 days; at least 1 second.
	Retention time.Duration `yaml:"retention" env:"RETENTION"`
	// Interval is the pause of [Janitor.Run] between two passes. Defaults to 1 minute.
	Interval time.Duration `yaml:"interval" env:"INTERVAL"`
	// BatchTime is how long one batch should take: the size of batches follows. Defaults to 50 ms.
	BatchTime time.Duration `yaml:"batch_time" env:"BATCH_TIME"`
	// MaxBatch is how many events a batch may have. Defaults to 10,000.
	MaxBatch int `yaml:"max_batch" env:"MAX_BATCH"`
	// Share is the greatest part of the time in which a pass keeps the database busy: the pass
	// pauses after each batch for the rest. 1 does not pause. Defaults to 0.5.
	Share float64 `yaml:"share" env:"SHARE"`
	// Archive receives the events of each batch before their removal; a later transaction removes
	// them, once Archive has returned nil. See [ArchiveSink]. The store must be an
	// [outbox.ArchiveStore]. Defaults to none: events are removed without being read.
	Archive ArchiveSink `yaml:"-" env:"-"`
	// Progress is called after each batch with the report so far, and at the end of the pass with
	// Done set. The pass waits for Progress. Defaults to none.
	Progress func(JanitorReport) `yaml:"-" env:"-"`
	// Logger receives the numbers of removed rows, and errors. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

// ArchiveSink keeps events that a [Janitor] is about to remove. Package producer/archive has one that
// writes files.
type ArchiveSink interface {
	// Archive keeps events, which must be durable when Archive returns nil. On an error nothing is
	// removed, and the pass ends; the next pass hands out the events again. Events also come again
	// after a crash, or if they had to stay: a sink keeps one of several events with equal dispatch
	// IDs, or its readers do. Archive may be called concurrently by several janitors. The slice and
	// its events belong to the sink.
	Archive(ctx context.Context, events []outbox.Archived) error
}

const (
	minRetention     = time.Second
	defaultRetention = 7 * 24 * time.Hour
	maxJanitorBatch  = 1 << 20
)

func (c JanitorConfig) withDefaults() (JanitorConfig, error) {
	var errs []error
	span := func(name string, value *time.Duration, def time.Duration) {
		if *value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", name, *value))
		}
		if *value == 0 {
			*value = def
		}
	}
	span("Retention", &c.Retention, defaultRetention)
	span("Interval", &c.Interval, time.Minute)
	span("BatchTime", &c.BatchTime, 50*time.Millisecond)
	if c.Retention > 0 && c.Retention < minRetention {
		errs = append(errs, fmt.Errorf("Retention: %v is shorter than %v", c.Retention, minRetention))
	}
	if c.MaxBatch == 0 {
		c.MaxBatch = 10_000
	}
	if c.MaxBatch < 0 || c.MaxBatch > maxJanitorBatch {
		errs = append(errs, fmt.Errorf("MaxBatch: %d is not between 1 and %d", c.MaxBatch, maxJanitorBatch))
	}
	if c.Share == 0 {
		c.Share = 0.5
	}
	if !(c.Share > 0 && c.Share <= 1) { // also NaN
		errs = append(errs, fmt.Errorf("Share: %v is not above 0 and at most 1", c.Share))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// JanitorReport counts the work of a pass.
type JanitorReport struct {
	// Events, Attempts and Receipts are how many rows were removed.
	Events, Attempts, Receipts int64
	// Archived is how many events JanitorConfig.Archive has kept, including events that stayed.
	Archived int64
	// Batches is the number of batches. Took is the time of the whole pass, and LongestBatch the
	// time of its longest batch.
	Batches      int64
	Took         time.Duration
	LongestBatch time.Duration
	// Done tells that nothing is left to remove now.
	Done bool
}

// Janitor removes rows past their retention from an outbox: delivered and discarded events, with
// their receipts and attempts. A Janitor never removes an undelivered event. The size of a batch
// and the pause after the batch follow the times of the last batches: a busy database gets more
// time for other work.
//
// Any number of janitors may run on one outbox, in any process, and be killed at any point: every
// batch is a transaction, and the next batch finds the remaining rows.
//
// A Janitor is safe for concurrent use.
type Janitor struct {
	store outbox.JanitorStore
	cfg   JanitorConfig
	total [5]atomic.Int64 // events, attempts, receipts, batches, archived

	archive outbox.ArchiveStore // nil without JanitorConfig.Archive
}

// NewJanitor returns a janitor over store. It does no I/O.
func NewJanitor(store outbox.JanitorStore, cfg JanitorConfig) (*Janitor, error) {
	cfg, err := cfg.withDefaults()
	if store == nil {
		err = errors.Join(err, errors.New("store is nil"))
	}
	j := &Janitor{store: store, cfg: cfg}
	if cfg.Archive != nil && store != nil {
		var can bool
		if j.archive, can = store.(outbox.ArchiveStore); !can {
			err = errors.Join(err, errors.New("Archive: the store is no outbox.ArchiveStore"))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("janitor config: %w", err)
	}
	return j, nil
}

// Janitor returns a janitor of the outbox's store; see [NewJanitor].
func (o *Outbox[TX]) Janitor(cfg JanitorConfig) (*Janitor, error) { return NewJanitor(o.store, cfg) }

// Run removes rows past their retention, at once and then after each JanitorConfig.Interval, until
// ctx ends, and returns nil. An error of the database ends the pass and is logged; the next pass
// goes on.
func (j *Janitor) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		report, err := j.RunOnce(ctx)
		switch {
		case ctx.Err() != nil: // removed rows stay removed
		case err != nil:
			j.cfg.Logger.WarnContext(ctx, "retention pass failed, the next one goes on", "error", err, "events", report.Events)
		case report.Events+report.Attempts+report.Receipts > 0:
			j.cfg.Logger.InfoContext(ctx, "retention pass", "events", report.Events, "attempts", report.Attempts,
				"receipts", report.Receipts, "batches", report.Batches, "took", report.Took)
		}
		if pace.Sleep(ctx, j.cfg.Interval) != nil {
			break
		}
	}
	return nil
}

// RunOnce makes one pass over all rows past their retention. On an error, or when ctx ends, RunOnce
// also reports the rows removed so far.
func (j *Janitor) RunOnce(ctx context.Context) (JanitorReport, error) {
	p := &pass{j: j, begun: time.Now(), pace: pace.New(j.cfg.MaxBatch, j.cfg.BatchTime, j.cfg.Share)}
	var after time.Time
	err := p.each(ctx, func(limit int) (outbox.Removed, error) {
		r, err := p.removeDelivered(ctx, after, limit)
		after = r.Through
		return r, err
	})
	if err != nil {
		return p.report, fmt.Errorf("remove delivered events: %w", err)
	}
	err = p.each(ctx, func(limit int) (outbox.Removed, error) { return p.removeDiscarded(ctx, limit) })
	if err != nil {
		return p.report, fmt.Errorf("remove discarded events: %w", err)
	}
	p.report.Done = true
	p.reportProgress()
	return p.report, nil
}

// Count counts the rows that a pass would remove now, and removes none. It looks at no more than
// about limit delivered events, and limit discarded and cancelled events. The error wraps
// [errors.ErrUnsupported] if the store is no [outbox.RemovableCounter].
func (j *Janitor) Count(ctx context.Context, limit int) (outbox.RemovableCount, error) {
	store, can := j.store.(outbox.RemovableCounter)
	switch {
	case !can:
		return outbox.RemovableCount{}, fmt.Errorf("count removable rows: %w: the store %T is no outbox.RemovableCounter", errors.ErrUnsupported, j.store)
	case limit < 1:
		return outbox.RemovableCount{}, fmt.Errorf("count removable rows: the limit %d is below 1", limit)
	}
	return store.CountRemovable(ctx, j.cfg.Retention, limit)
}

// Totals returns the counts of all passes of this janitor together. Took, LongestBatch and Done are
// not set.
func (j *Janitor) Totals() JanitorReport {
	return JanitorReport{
		Events: j.total[0].Load(), Attempts: j.total[1].Load(), Receipts: j.total[2].Load(), Batches: j.total[3].Load(),
		Archived: j.total[4].Load(),
	}
}

// pass is one pass of a janitor.
type pass struct {
	j      *Janitor
	begun  time.Time
	pace   *pace.Pace
	report JanitorReport
	// waited is the time that the archive took within the current batch. It does not count as time
	// of the database.
	waited time.Duration
}

func (p *pass) removeDelivered(ctx context.Context, after time.Time, limit int) (outbox.Removed, error) {
	if p.j.archive == nil {
		return p.j.store.RemoveDelivered(ctx, p.j.cfg.Retention, after, limit)
	}
	list, err := p.j.archive.ListDelivered(ctx, p.j.cfg.Retention, after, limit)
	return p.archive(ctx, list, err)
}

func (p *pass) removeDiscarded(ctx context.Context, limit int) (outbox.Removed, error) {
	if p.j.archive == nil {
		return p.j.store.RemoveDiscarded(ctx, p.j.cfg.Retention, limit)
	}
	list, err := p.j.archive.ListDiscarded(ctx, p.j.cfg.Retention, limit)
	return p.archive(ctx, list, err)
}

// archive hands out the events of list, and then removes them. No transaction is open meanwhile.
func (p *pass) archive(ctx context.Context, list outbox.Removable, err error) (outbox.Removed, error) {
	if err != nil {
		return outbox.Removed{}, err
	}
	if len(list.Events) > 0 {
		begun := time.Now()
		if err := p.j.cfg.Archive.Archive(ctx, list.Events); err != nil {
			return outbox.Removed{}, fmt.Errorf("archive: %w", err)
		}
		p.waited += time.Since(begun)
		p.report.Archived += int64(len(list.Events))
		p.j.total[4].Add(int64(len(list.Events)))
	}
	if err := fault.Hit(ctx, fault.BeforeDelete); err != nil {
		return outbox.Removed{}, err
	}
	return p.j.archive.RemoveListed(ctx, p.j.cfg.Retention, list)
}

// each removes batch by batch until a batch is not full.
func (p *pass) each(ctx context.Context, remove func(limit int) (outbox.Removed, error)) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := fault.Hit(ctx, fault.BeforeDelete); err != nil {
			return err
		}
		begun := time.Now()
		p.waited = 0
		r, err := remove(p.pace.Size())
		if err != nil {
			return err
		}
		took := time.Since(begun) - p.waited
		p.add(r, took)
		pause := p.pace.Took(took, r.Full)
		if !r.Full {
			return nil
		}
		if err := pace.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func (p *pass) add(r outbox.Removed, took time.Duration) {
	for i, n := range []int{r.Events, r.Attempts, r.Receipts, 1} {
		p.j.total[i].Add(int64(n))
	}
	p.report.Events += int64(r.Events)
	p.report.Attempts += int64(r.Attempts)
	p.report.Receipts += int64(r.Receipts)
	p.report.Batches++
	p.report.LongestBatch = max(p.report.LongestBatch, took)
	p.reportProgress()
}

func (p *pass) reportProgress() {
	p.report.Took = time.Since(p.begun)
	if p.j.cfg.Progress != nil {
		p.j.cfg.Progress(p.report)
	}
}
