package audit

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
)

// run is one audit under way.
type run struct {
	cfg       *Config
	report    *Report
	now       time.Time // on the slowest of the outboxes' clocks
	until     time.Time // what was created before it is looked at …
	cutoff    time.Time // … and before this, is no longer in flight
	outboxes  []*outbox
	consumers []*consumer
	expecting map[string]uint64 // the consumers that expect a topic, as bits
	window    window
	begin     time.Time // when the first event was created
	progress  Progress

	pairs    map[pair]candidate
	events   []suspect // in the order of outboxes only within one
	messages []suspect
}

// outbox is an outbox that is read.
type outbox struct {
	NamedOutbox
	report *OutboxReport
	span   Span
	stream
	after int64
	open  []*openEvent // in the window, oldest first
}

// consumer is a consumer whose claims are read.
type consumer struct {
	Expectation
	Consumer
	inbox  NamedInbox
	report *ConsumerReport
	stream
	after ClaimPlace
	open  []*openClaim // in the window, oldest first
}

// Run reads all databases and returns what it found. It blocks; an error says that something
// could not be checked, and then there is no report. It may be called several times, also at once.
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

// openOutboxes reads what the outboxes hold, and what time it is.
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

// disorder is by how much events may be out of the order of their creation: an event gets
// its number and its time a moment apart, and other events come in between.
const disorder = time.Minute

// seek returns a number below those of the events created from From on. There is no index on
// the time of creation, but it ascends with the numbers, so it is found by halving.
func (r *run) seek(ctx context.Context, o *outbox) (int64, error) {
	if r.cfg.From.IsZero() {
		return 0, nil
	}
	from := r.cfg.From.Add(-disorder)
	low, high := int64(0), o.span.Last // nothing up to low is wanted
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

// openConsumers finds the consumers of the expectations in the inboxes.
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
			return fmt.Errorf("consumer %q: is in %s and in %s: check them in runs of their own", name, list[0].inbox.Name, list[1].inbox.Name)
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

// maxTopics is for how many topics it is remembered who expects them.
const maxTopics = 10_000

// inRange tells whether an event that was created at a time is looked at.
func (r *run) inRange(created time.Time) bool {
	return !created.Before(r.cfg.From) && created.Before(r.until)
}

// step tells the caller how far the audit is.
func (r *run) step(through time.Time) {
	r.progress.Through = through
	if total := r.cutoff.Sub(r.begin); !r.begin.IsZero() && total > 0 {
		r.progress.Done = math.Max(0, math.Min(1, through.Sub(r.begin).Seconds()/total.Seconds()))
	}
	r.cfg.Progress(r.progress)
}

// settle looks the remaining candidates up.
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
