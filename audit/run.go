package audit

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
)

// run is the state of one call of Run.
type run struct {
	cfg       *Config
	report    *Report
	now       time.Time // on the slowest of the outboxes' clocks
	until     time.Time // events created from until on are ignored
	cutoff    time.Time // events created before cutoff, and before until, are no longer in flight
	outboxes  []*outbox
	consumers []*consumer
	expecting map[string]uint64 // by topic; bit i: consumer i expects the topic
	window    window
	begin     time.Time // creation time of the first event
	progress  Progress

	pairs    map[pair]candidate
	events   []suspect // ordered within each outbox only
	messages []suspect
}

// outbox is an outbox with the state of its reader.
type outbox struct {
	NamedOutbox
	report *OutboxReport
	span   Span
	stream
	after int64
	open  []*openEvent // in the window, oldest first
}

// consumer is a consumer with the state of the reader of its claims.
type consumer struct {
	Expectation
	Consumer
	inbox  NamedInbox
	report *ConsumerReport
	stream
	after ClaimPlace
	open  []*openClaim // in the window, oldest first
}

// Run reads all databases and returns its findings. Run blocks until the audit is done. On an error
// some database could not be checked, and there is no report. Run may be called several times, also
// concurrently.
func (a *Audit) Run(ctx context.Context) (*Report, error) {
	r := &run{
		cfg:       &a.cfg,
		report:    newReport(&a.cfg),
		expecting: make(map[string]uint64),
		window:    newWindow(),
		pairs:     make(map[pair]candidate),
	}
	for _, step := range []func(context.Context) error{
		r.openOutboxes, r.openConsumers, r.readUnsent, r.readParked, r.join, r.settle,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
	}
	r.finish()
	return r.report, nil
}

func newReport(cfg *Config) *Report {
	report := &Report{
		Findings: make(map[Kind]int), Accepted: cfg.Accept, Examples: []Finding{}, From: cfg.From,
		Outboxes: make([]OutboxReport, len(cfg.Outboxes)), Consumers: make([]ConsumerReport, len(cfg.Expect)),
		Waiting: make(map[string]int),
	}
	for _, kind := range Kinds() {
		report.Findings[kind] = 0
	}
	return report
}

// openOutboxes reads the extent and the clock of each outbox, and sets the bounds of time.
func (r *run) openOutboxes(ctx context.Context) error {
	for i, named := range r.cfg.Outboxes {
		span, err := named.Outbox.Span(ctx)
		if err != nil {
			return fmt.Errorf("outbox %s: %w", named.Name, err)
		}
		report := &r.report.Outboxes[i]
		report.Name, report.RetainedSince = named.Name, span.RetainedSince
		o := &outbox{NamedOutbox: named, report: report, span: span}
		r.outboxes = append(r.outboxes, o)
		if r.now.IsZero() || span.Now.Before(r.now) {
			r.now = span.Now
		}
		if o.after, err = r.seek(ctx, o); err != nil {
			return fmt.Errorf("outbox %s: %w", named.Name, err)
		}
	}
	r.until = r.now
	if u := r.cfg.Until; !u.IsZero() && u.Before(r.until) {
		r.until = u
	}
	r.cutoff = r.now.Add(-r.cfg.Grace)
	if r.until.Before(r.cutoff) {
		r.cutoff = r.until
	}
	r.report.Until = r.cutoff
	return nil
}

// disorder is by how much numbers and creation times of events may disagree in order: an event gets
// its number and its time a moment apart, and other events fall in between.
const disorder = time.Minute

// seek returns a number below all events created from From on. The time of creation has no index,
// but ascends with the numbers, so seek is a binary search.
func (r *run) seek(ctx context.Context, o *outbox) (int64, error) {
	if r.cfg.From.IsZero() {
		return 0, nil
	}
	from := r.cfg.From.Add(-disorder)
	low, high := int64(0), o.span.Last // no event up to low is wanted
	for low < high {
		middle := low + (high-low)/2
		next, err := o.Outbox.Events(ctx, middle, 1)
		switch {
		case err != nil:
			return 0, err
		case len(next) > 0 && next[0].CreatedAt.Before(from):
			low = next[0].Seq
		default:
			high = middle
		}
	}
	return low, nil
}

// openConsumers finds the consumer of each expectation in the inboxes.
func (r *run) openConsumers(ctx context.Context) error {
	found := make([][]*consumer, len(r.cfg.Expect))
	for _, inbox := range r.cfg.Inboxes {
		registered, err := inbox.Inbox.Consumers(ctx)
		if err != nil {
			return fmt.Errorf("inbox %s: %w", inbox.Name, err)
		}
		for _, c := range registered {
			i := slices.IndexFunc(r.cfg.Expect, func(e Expectation) bool { return e.Consumer == c.Name })
			if i < 0 {
				r.report.Unchecked = append(r.report.Unchecked, c.Name)
				continue
			}
			found[i] = append(found[i], &consumer{Expectation: r.cfg.Expect[i], Consumer: c, inbox: inbox})
		}
	}
	for i, list := range found {
		name := r.cfg.Expect[i].Consumer
		switch {
		case len(list) == 0:
			return fmt.Errorf("consumer %q: no given inbox knows it (they know %q)", name, r.report.Unchecked)
		case len(list) > 1:
			return fmt.Errorf("consumer %q: is in %s and in %s: check each in a run of its own", name, list[0].inbox.Name, list[1].inbox.Name)
		}
		c := list[0]
		c.report = &r.report.Consumers[i]
		*c.report = ConsumerReport{Name: name, Database: c.inbox.Name, Topics: c.Topics, ForgottenUntil: c.ForgottenUntil}
		c.after.Stamp = r.cfg.From
		r.consumers = append(r.consumers, c)
	}
	return nil
}

// expected returns the consumers that expect a topic, as bits.
func (r *run) expected(topic string) uint64 {
	set, known := r.expecting[topic]
	if known {
		return set
	}
	for i, c := range r.consumers {
		if slices.ContainsFunc(c.Topics, func(pattern string) bool { return matches(pattern, topic) }) {
			set |= 1 << i
		}
	}
	if len(r.expecting) < maxTopics {
		r.expecting[topic] = set
	}
	return set
}

// maxTopics is how many topics are kept in run.expecting.
const maxTopics = 10_000

// inRange tells whether an event created at a time belongs to the audit.
func (r *run) inRange(created time.Time) bool {
	return !created.Before(r.cfg.From) && created.Before(r.until)
}

// step reports the progress to the caller.
func (r *run) step(through time.Time) {
	r.progress.Through = through
	if total := r.cutoff.Sub(r.begin); !r.begin.IsZero() && total > 0 {
		r.progress.Done = math.Max(0, math.Min(1, through.Sub(r.begin).Seconds()/total.Seconds()))
	}
	r.cfg.Progress(r.progress)
}

// settle looks up the remaining suspects and pairs.
func (r *run) settle(ctx context.Context) error {
	if err := r.settleEvents(ctx); err != nil {
		return err
	}
	if err := r.settleMessages(ctx); err != nil {
		return err
	}
	return r.settlePairs(ctx)
}

// idsOf returns the dispatch IDs of suspects.
func idsOf(suspects []suspect) []uuid.UUID {
	ids := make([]uuid.UUID, len(suspects))
	for i := range suspects {
		ids[i] = suspects[i].DispatchID
	}
	return ids
}
