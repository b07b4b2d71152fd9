package consumer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/internal/version"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

const (
	// reportEvery is the time between two looks at what the handlers have done, and between two
	// reports of a busy process.
	reportEvery = 5 * time.Second
	// reportIdle is the time between two reports of a process whose handlers do nothing.
	reportIdle = 10 * time.Second
	// behindLook is how much later than a look for due messages a report comes.
	behindLook = 100 * time.Millisecond
	// reportTTL is how long a report is listed: a process stays listed if two reports in a row fail.
	// It is also the longest wait after a failure.
	reportTTL = 30 * time.Second
	// reportTimeout bounds a report, and leaveTimeout the removal of the reports when Run ends.
	reportTimeout = 5 * time.Second
	leaveTimeout  = 2 * time.Second

	maxHost = 200 // bytes in the name of a process
)

// reporter tells operators through the database which handlers this process has, and what they have
// done. Handling never waits for it. Only the goroutine of run uses its fields.
type reporter[TX any] struct {
	inbox   *Inbox[TX]
	store   inbox.Reporter
	process inbox.Process

	written   []inbox.HandlerReport     // by the last report that did not fail
	writtenAt time.Time                 // when that report was begun; zero: none was written
	fails     int                       // in a row
	logged    map[inbox.ErrorClass]bool // since that report
}

// reportHandlers reports the handlers until ctx ends. It does nothing if the store keeps no reports.
func (i *Inbox[TX]) reportHandlers(ctx context.Context) {
	store, ok := i.store.(inbox.Reporter)
	if !ok {
		return
	}
	host, _ := os.Hostname() // "" if the system does not tell
	host = text.Clean(host, maxHost)
	r := reporter[TX]{inbox: i, store: store, logged: make(map[inbox.ErrorClass]bool), process: inbox.Process{
		Name: fmt.Sprintf("%s/%d/%s", cmp.Or(host, "process"), os.Getpid(), rand.Text()[:8]),
		Host: host, Version: version.Library(), StartedAt: i.madeAt,
	}}
	r.run(ctx)
}

func (r *reporter[TX]) run(ctx context.Context) {
	for pace.Sleep(ctx, r.once(ctx)) == nil {
	}
	if !r.writtenAt.IsZero() {
		_ = r.write(ctx, leaveTimeout, nil) // the reports end by themselves after reportTTL
	}
}

// once writes a report if there is something to tell, and returns the wait before the next call.
func (r *reporter[TX]) once(ctx context.Context) time.Duration {
	reports, now := r.inbox.handlerReports(), time.Now()
	if len(reports) == 0 {
		return r.next()
	}
	if now.Sub(r.writtenAt) < reportIdle-reportEvery/2 && reflect.DeepEqual(reports, r.written) {
		return r.next()
	}
	err := r.write(ctx, reportTimeout, r.inbox.withBacklogs(ctx, reports))
	if err == nil {
		r.written, r.writtenAt, r.fails = reports, now, 0
		clear(r.logged)
		return r.next()
	}
	if class := r.inbox.store.Classify(err); !r.logged[class] {
		r.logged[class] = true
		r.inbox.log.WarnContext(ctx, "handlers cannot be reported to operators, and go on without: are all migrations applied, "+
			"and may this user write the table inbox_handlers?", "service", r.inbox.cfg.Service, "error", err)
	}
	r.fails++
	return min(doubled(reportEvery, r.fails-1), reportTTL)
}

// next returns the wait until the next report, which comes behind a look for due messages.
func (r *reporter[TX]) next() time.Duration { return r.inbox.tick(reportEvery) + behindLook }

// write replaces the reports of the process. The end of ctx does not cut it short: a report that is
// committed late would list a process that has ended.
func (r *reporter[TX]) write(ctx context.Context, timeout time.Duration, reports []inbox.HandlerReport) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	p := r.process
	p.At = time.Now()
	return r.store.ReportHandlers(ctx, p, reportTTL, reports)
}

// handlerReports returns a report of each handler, by name.
func (i *Inbox[TX]) handlerReports() []inbox.HandlerReport {
	handlers := i.all()
	slices.SortFunc(handlers, func(a, b *Handler[TX]) int { return strings.Compare(a.name, b.name) })
	reports := make([]inbox.HandlerReport, len(handlers))
	for n, h := range handlers {
		reports[n] = h.report()
	}
	return reports
}

// report tells what the handler has done.
func (h *Handler[TX]) report() inbox.HandlerReport {
	c := &h.counts
	r := inbox.HandlerReport{
		Consumer: h.name, Topics: []string{}, InFlight: int(c.inFlight.Load()),
		Applied: c.applied.Load(), Duplicates: c.window.Load() + c.table.Load(), Failed: c.failed.Load(),
		Window: h.inbox.cfg.Window, CacheHits: c.window.Load(),
	}
	if topics := c.topics.Load(); topics != nil {
		r.Topics = *topics
	}
	if at := c.lastSuccess.Load(); at != 0 {
		r.LastSuccess = time.Unix(0, at)
	}
	if f := c.lastFailure.Load(); f != nil {
		r.LastFailure, r.LastError = f.at, f.text
	}
	if h.registry.window != nil {
		r.CacheSize, r.CacheEntries = h.inbox.cfg.CacheSize, h.registry.window.Len()
	}
	if pause := h.permits.paused.Load(); pause != nil {
		r.Paused = pause.String()
	}
	return r
}

// withBacklogs returns the reports with what waits at the brokers.
func (i *Inbox[TX]) withBacklogs(ctx context.Context, reports []inbox.HandlerReport) []inbox.HandlerReport {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	waiting := make(map[string]*int)
	for _, h := range i.all() {
		waiting[h.name] = h.backlogs.waiting(ctx)
	}
	reports = slices.Clone(reports)
	for n := range reports {
		reports[n].Waiting = waiting[reports[n].Consumer]
	}
	return reports
}

// backlogs are those of the subscriptions that have delivered messages to a handler.
type backlogs struct{ known sync.Map }

// add takes note of the subscription of a message.
func (b *backlogs) add(ctx context.Context) {
	if one, ok := transport.BacklogOf(ctx); ok {
		if _, known := b.known.Load(one); !known {
			b.known.Store(one, nil)
		}
	}
}

// waiting returns how many messages wait, or nil if no broker tells. A subscription that does not tell
// is asked again after it has delivered another message.
func (b *backlogs) waiting(ctx context.Context) *int {
	var sum *int
	b.known.Range(func(key, _ any) bool {
		n, err := key.(transport.Backlog).Waiting(ctx)
		switch {
		case err != nil:
			b.known.Delete(key)
		case sum == nil:
			sum = &n
		default:
			*sum += n
		}
		return true
	})
	return sum
}

// ListHandlers reads which processes of which services handle messages of this database, by consumer
// and process. A process is listed while it calls [Inbox.Run], and for up to 30 seconds after it was
// killed; a process that only consumes is not known. The error wraps [errors.ErrUnsupported] if the
// store is no [inbox.Reporter].
func (i *Inbox[TX]) ListHandlers(ctx context.Context) ([]inbox.RunningHandler, error) {
	store, ok := i.store.(inbox.Reporter)
	if !ok {
		return nil, fmt.Errorf("list handlers: %w: the store %T is no inbox.Reporter", errors.ErrUnsupported, i.store)
	}
	return store.ListHandlers(ctx)
}
