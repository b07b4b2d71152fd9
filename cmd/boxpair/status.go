package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

var status = command{
	name:    "status",
	summary: "show whether outboxes and inboxes are healthy, and what waits",
	group:   looking,
	details: `Prints for each outbox whether it is healthy, degraded or unhealthy, and why; how many events wait,
and the age of the oldest; how many are deferred or parked; the routes that do not work; the pauses in
force; the causes of dead events. For each inbox the same of its consumers, and which processes handle
their messages, as far as these call Inbox.Run. --watch prints it again every few seconds.

    boxpair status --outbox postgres://monitor@orders/shop --inbox postgres://monitor@stock/stock
    boxpair status --inbox postgres://monitor@stock/stock --consumer stock/reserve --fail degraded -o json

Exit status: 0 every state is better than --fail, 1 a state is as bad as --fail or worse, 2 a state could not be read.`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		q := &inspection{fail: "unhealthy"}
		q.define(s)
		return q.run
	},
}

// inspection holds the settings of status.
type inspection struct {
	databases
	display

	consumer   string
	thresholds health.Config
	fail       string
	watch      bool
	topics     bool
	every      time.Duration
	secrets    *secrets
}

func (q *inspection) define(s *settings) {
	c := &q.thresholds
	q.secrets = s.secrets
	q.databases.define(s, "the database of an outbox. May be given several times.", "the database of an inbox. May be given several times.")
	s.text(&q.consumer, "consumer", "NAME", "only this consumer of the inboxes, such as stock/reserve. Defaults to all.")
	s.choice(&q.fail, "fail", "STATE", "the state from which on the exit status is 1: degraded, unhealthy or never. Defaults to unhealthy.", "degraded", "unhealthy", "never")
	s.duration(&c.DegradedAge, "degraded-age", "the age of the oldest waiting event or message from which on the state is degraded. Defaults to 1m.")
	s.duration(&c.UnhealthyAge, "unhealthy-age", "the age from which on the state is unhealthy. Defaults to 10m, or to --degraded-age if that is longer.")
	s.count(&c.DegradedPending, "degraded-pending", "the number of waiting events or messages from which on the state is degraded. Defaults to 10000.")
	s.count(&c.UnhealthyPending, "unhealthy-pending", "the number from which on the state is unhealthy. Defaults to none.")
	s.count(&c.DegradedDead, "degraded-dead", "the number of events or messages for an operator from which on the state is degraded. Defaults to 1.")
	s.count(&c.UnhealthyDead, "unhealthy-dead", "the number from which on the state is unhealthy. Defaults to 100, or to --degraded-dead if that is more.")
	s.on(&q.topics, "topics", "print what waits of each topic, the age of the oldest, and the dead ones; and what relays have sent lately, with their rates.")
	q.every = watchEvery
	s.on(&q.watch, "watch", "print the status again and again, until interrupted.")
	s.duration(&q.every, "every", "the time between two prints of --watch. Defaults to 2s.")
	q.display.define(s)
}

const watchEvery = 2 * time.Second

func (q *inspection) run(ctx context.Context, p *process) (int, error) {
	check, err := health.New(q.thresholds)
	if err := errors.Join(err, q.some()); err != nil {
		return exitFailed, err
	}
	if !q.watch {
		return q.once(ctx, p, check)
	}
	again := time.NewTicker(q.every)
	defer again.Stop()
	for {
		if p.measure != nil {
			p.width = p.measure()
		}
		q.page(ctx, p, check)
		select {
		case <-ctx.Done():
			return exitOK, nil // the end of a watch is no failure
		case <-again.C:
		}
	}
}

// page prints the status in place of the last page of a watch. Errors end no watch: databases come
// back.
func (q *inspection) page(ctx context.Context, p *process, check *health.Check) {
	var page bytes.Buffer
	paged := *p
	paged.stdout = &page
	_, err := q.once(ctx, &paged, check)
	if ctx.Err() != nil {
		return
	}
	if err != nil && !q.json() { // an object has its errors
		for line := range strings.Lines(q.secrets.redact(err)) {
			fmt.Fprintln(&page, plain(strings.TrimSpace(line)))
		}
	}
	const home = "\x1b[H\x1b[2J\x1b[3J" // of the cursor, on an empty screen
	if p.escapes() && !q.json() {
		fmt.Fprint(p.stdout, home)
	}
	_, _ = page.WriteTo(p.stdout)
}

// report is the output of status in JSON.
type report struct {
	State    health.State   `json:"state"`
	Outboxes []outboxStatus `json:"outboxes"`
	Inboxes  []inboxStatus  `json:"inboxes"`
	Errors   []string       `json:"errors"` // of databases that could not be read: the state is then unknown
}

// unknown is the state if a database could not be read.
const unknown health.State = "unknown"

// once reads the state of all databases, and prints it.
func (q *inspection) once(ctx context.Context, p *process, check *health.Check) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, inspectionTimeout, fmt.Errorf("the databases gave no answer within %v", inspectionTimeout))
	defer cancel()
	r := report{health.Healthy, []outboxStatus{}, []inboxStatus{}, []string{}}
	err := q.each(ctx, true, func(s *operators) error {
		if s.isInbox {
			one, err := q.inbox(ctx, s, check)
			if err != nil {
				return err
			}
			r.Inboxes, r.State = append(r.Inboxes, *one), health.Worst(r.State, one.State)
			err = q.print(p, &r, func() error { return q.printInbox(p, one) })
			return errors.Join(err, q.causesOfInbox(ctx, p, s, one.Consumers))
		}
		one, err := q.outbox(ctx, s, check)
		if err != nil {
			return err
		}
		r.Outboxes, r.State = append(r.Outboxes, *one), health.Worst(r.State, one.State)
		err = q.print(p, &r, func() error { return q.printOutbox(p, one) })
		return errors.Join(err, q.causesOfOutbox(ctx, p, s, &r.Outboxes[len(r.Outboxes)-1]))
	})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	worst := r.State
	if err != nil {
		r.State, r.Errors = unknown, []string{q.secrets.redact(err)}
	}
	if q.json() {
		err = errors.Join(q.encode(p.stdout, &r), err)
	}
	switch {
	case err != nil:
		return exitFailed, err
	case q.fail != "never" && health.Worst(worst, health.State(q.fail)) == worst:
		return exitFound, nil
	}
	return exitOK, nil
}

// print prints the last database of r as text, before the next one is read.
func (q *inspection) print(p *process, r *report, one func() error) error {
	if q.json() {
		return nil
	}
	if len(r.Outboxes)+len(r.Inboxes) > 1 {
		fmt.Fprintln(p.stdout)
	}
	return one()
}

// outboxStatus is the state of an outbox in JSON.
type outboxStatus struct {
	Database string `json:"database"`
	health.Report
	Pending       int64   `json:"pending"`
	PendingCapped bool    `json:"pending_capped"`
	OldestSeconds float64 `json:"oldest_pending_seconds"`
	Deferred      int64   `json:"deferred"`
	Retrying      int64   `json:"retrying"`
	Following     int64   `json:"following"`
	Dead          int64   `json:"dead"`
	Owned         int     `json:"owned_shards"`
	Relays        int     `json:"relays"`
	Causes        []cause `json:"dead_causes,omitempty"`

	Routes       []routeStatus `json:"routes"` // routes that do not work; never null
	Pauses       []pauseStatus `json:"pauses"` // never null
	Fleet        []relayStatus `json:"fleet"`  // the relays one by one; never null
	topicsStatus               // empty without --topics

	pauses []control.Pause
}

// relayStatus is a relay, with what it has reported, in JSON.
type relayStatus struct {
	Name   string `json:"name"`
	Shards int    `json:"shards"`
	outbox.RelayReport
}

// routeStatus is a topic to which a relay cannot send, in JSON.
type routeStatus struct {
	Topic      string  `json:"topic"`
	Route      string  `json:"route"`
	State      string  `json:"state"`
	ForSeconds float64 `json:"for_seconds"`
	LastError  string  `json:"last_error"`
	Relay      string  `json:"relay"`
}

// outbox reads the state of an outbox.
func (q *inspection) outbox(ctx context.Context, s *operators, check *health.Check) (*outboxStatus, error) {
	st, err := s.outbox.Stats(ctx)
	if err != nil {
		return nil, err
	}
	stalled, err := s.outbox.ListRoutes(ctx)
	if err != nil {
		return nil, err
	}
	pauses, err := s.outbox.Pauses(ctx)
	if err != nil {
		return nil, err
	}
	o := &outboxStatus{
		Database: s.name, Report: check.Routes(check.Outbox(st), stalled),
		Pending: st.Pending, PendingCapped: st.PendingCapped, OldestSeconds: st.OldestPending.Seconds(), Deferred: st.Deferred,
		Retrying: st.Retrying, Following: st.Following, Dead: st.Dead, Owned: st.Owned, Relays: st.Relays,
		Routes: make([]routeStatus, len(stalled)), Pauses: pauseStatuses(pauses), pauses: pauses,
	}
	for i, r := range stalled {
		o.Routes[i] = routeStatus{r.Topic, r.Route, string(r.State), r.For.Seconds(), r.LastError, r.Relay}
	}
	if o.Fleet, err = fleet(ctx, s); err == nil && q.topics {
		o.topicsStatus, err = countTopics(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	if err := tables(ctx, s, &o.Report); err != nil {
		return nil, err
	}
	return o, nil
}

// causesOfOutbox reads the causes of dead events, and prints the first ones. Many dead events take longer
// than the rest of the status, which is printed before.
func (q *inspection) causesOfOutbox(ctx context.Context, p *process, s *operators, o *outboxStatus) (err error) {
	o.Causes, err = causesIf(o.Dead, func() ([]cause, error) { return deadCauses(ctx, s, "", mostCauses) })
	if err == nil && !q.json() {
		q.printCauses(p, "", o.Causes)
	}
	return err
}

func (q *inspection) printOutbox(p *process, o *outboxStatus) error {
	q.headline(p, "outbox", o.Database, &o.Report)
	more := ""
	if o.PendingCapped {
		more = " or more"
	}
	oldest := ""
	if o.OldestSeconds > 0 {
		oldest = ", the oldest for " + short(seconds(o.OldestSeconds))
	}
	q.wrap(p, p.stdout, "", "  ", fmt.Sprintf("pending %d%s%s; deferred %d; retrying %d; following %d; dead %d", o.Pending, more, oldest, o.Deferred, o.Retrying, o.Following, o.Dead))
	fmt.Fprintf(p.stdout, "relays %d, with %d of %d shards\n", o.Relays, o.Owned, idgen.Shards)
	errs := []error{q.printTopics(p, o.topicsStatus), q.printFleet(p, o.Fleet)}
	if len(o.Routes) > 0 {
		g := q.grid(p, column{head: "topic", flexible: true}, column{head: "route", flexible: true, wide: true}, column{head: "state"}, column{head: "for"},
			column{head: "relay", wide: true}, column{head: "last error", flexible: true})
		for _, r := range o.Routes {
			g.add(r.Topic, r.Route, r.State, short(seconds(r.ForSeconds)), r.Relay, r.LastError)
		}
		errs = append(errs, g.print(p.stdout))
	}
	if len(o.pauses) > 0 {
		errs = append(errs, q.printPauses(p, p.stdout, o.pauses))
	}
	return errors.Join(errs...)
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// headline prints the name and the state of a database, and each problem on a line.
func (q *inspection) headline(p *process, side, name string, r *health.Report) {
	state := string(r.State)
	if q.colored(p) {
		state = paint(state)
	}
	fmt.Fprintf(p.stdout, "%s %s is %s\n", side, plain(name), state)
	for _, problem := range r.Problems {
		q.remedy(p, p.stdout, "  ", plain(strings.TrimPrefix(problem, string(r.State)+": ")))
	}
}

// tables adds the problems of the tables themselves to a report.
func tables(ctx context.Context, s *operators, r *health.Report) error {
	err := s.schema.CheckSchema(ctx)
	if err == nil && !s.isInbox && s.numbers != nil {
		err = s.numbers.CheckSequence(ctx, 0)
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	if err != nil {
		r.State = health.Unhealthy
		r.Problems = append(r.Problems, "unhealthy: "+err.Error())
	}
	return nil
}

// consumerStatus is the state of one consumer in JSON.
type consumerStatus struct {
	Consumer string `json:"consumer"`
	health.Report
	Retrying      int64          `json:"retrying"`
	Following     int64          `json:"following"`
	OldestSeconds float64        `json:"oldest_parked_seconds"`
	Dead          int64          `json:"dead"`
	TooOld        int64          `json:"too_old"`
	Altered       int64          `json:"altered"`
	Effects       effectsWaiting `json:"effects"`
	Causes        []cause        `json:"dead_causes,omitempty"`
}

// effectsWaiting counts the unfinished effects outside the database.
type effectsWaiting struct {
	Pending       int64   `json:"pending"`
	Doing         int64   `json:"doing"`
	Answered      int64   `json:"answered"`
	Uncertain     int64   `json:"uncertain"`
	Dead          int64   `json:"dead"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

// inboxStatus is the state of an inbox in JSON.
type inboxStatus struct {
	Database string `json:"database"`
	health.Report
	Consumers []consumerStatus `json:"consumers"`
	Pauses    []pauseStatus    `json:"pauses"`

	Handlers   []handlerStatus `json:"handlers"`   // of all processes that report; never null
	Unreported []string        `json:"unreported"` // consumers that no process reports; never null

	pauses []control.Pause
}

// inbox reads the state of the consumers of an inbox.
func (q *inspection) inbox(ctx context.Context, s *operators, check *health.Check) (*inboxStatus, error) {
	names, err := q.consumers(ctx, s)
	if err != nil {
		return nil, err
	}
	pauses, err := s.inbox.Pauses(ctx)
	if err != nil {
		return nil, err
	}
	if name := q.consumer; name != "" {
		pauses = slices.DeleteFunc(pauses, func(p control.Pause) bool { return !p.Consumes(name) })
	}
	in := &inboxStatus{
		Database: s.name, Report: health.Report{State: health.Healthy, Problems: []string{}},
		Consumers: make([]consumerStatus, len(names)), Pauses: pauseStatuses(pauses), pauses: pauses,
	}
	if err := tables(ctx, s, &in.Report); err != nil {
		return nil, err
	}
	for i, c := range names {
		st, err := s.states.InboxStats(ctx, c.ID)
		if err == nil {
			st.Effects, err = s.states.EffectStats(ctx, c.ID)
		}
		if err != nil {
			return nil, fmt.Errorf("consumer %s: %w", c.Name, err)
		}
		one := statusOf(c.Name, check.Inbox(st), &st)
		in.Consumers[i], in.State = one, health.Worst(in.State, one.State)
	}
	return in, q.addHandlers(ctx, s, in)
}

// causesOfInbox reads the causes of the consumers' dead messages, and prints the first ones of each.
func (q *inspection) causesOfInbox(ctx context.Context, p *process, s *operators, consumers []consumerStatus) (err error) {
	causes := consumerCauses(ctx, s)
	for i := range consumers {
		c := &consumers[i]
		if c.Causes, err = causesIf(c.Dead, func() ([]cause, error) { return causes(c.Consumer) }); err != nil {
			return fmt.Errorf("consumer %s: %w", c.Consumer, err)
		}
		if !q.json() {
			q.printCauses(p, plain(c.Consumer)+": ", c.Causes)
		}
	}
	return nil
}

func statusOf(name string, r health.Report, s *inbox.Stats) consumerStatus {
	e := &s.Effects
	return consumerStatus{
		name, r, s.Retrying, s.Following, s.OldestParked.Seconds(), s.Dead, s.TooOld, s.Altered,
		effectsWaiting{e.Pending, e.Doing, e.Answered, e.Uncertain, e.Dead, e.Oldest.Seconds()}, nil,
	}
}

// inspectionTimeout bounds all reads together.
const inspectionTimeout = 30 * time.Second

// consumers reads the registered consumers, by name. An unknown --consumer is an error, since a
// misspelt name must not seem healthy.
func (q *inspection) consumers(ctx context.Context, s *operators) ([]audit.Consumer, error) {
	list, err := s.consumers(ctx)
	if err != nil {
		return nil, err
	}
	if name := q.consumer; name != "" {
		list = slices.DeleteFunc(list, func(c audit.Consumer) bool { return c.Name != name })
		if len(list) == 0 {
			return nil, fmt.Errorf("--consumer: no consumer %q has registered", name)
		}
	}
	slices.SortFunc(list, func(a, b audit.Consumer) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (q *inspection) printInbox(p *process, in *inboxStatus) error {
	q.headline(p, "inbox", in.Database, &in.Report)
	if len(in.Consumers) == 0 {
		fmt.Fprintln(p.stdout, "no consumer has registered")
	}
	var errs []error
	if len(in.Consumers) > 0 {
		aside := slices.ContainsFunc(in.Consumers, func(c consumerStatus) bool { return c.TooOld+c.Altered > 0 })
		g := q.grid(p, column{head: "consumer", flexible: true}, column{head: "state"}, column{head: "retrying", number: true}, column{head: "following", number: true},
			column{head: "oldest"}, column{head: "dead", number: true}, column{head: "too old", number: true, wide: !aside}, column{head: "altered", number: true, wide: !aside},
			column{head: "effects open", number: true, wide: true}, column{head: "uncertain", number: true, wide: true}, column{head: "effects dead", number: true, wide: true})
		for i := range in.Consumers {
			c := &in.Consumers[i]
			e, oldest := &c.Effects, "-"
			if c.OldestSeconds > 0 {
				oldest = short(seconds(c.OldestSeconds))
			}
			g.add(c.Consumer, c.State, c.Retrying, c.Following, oldest, c.Dead, c.TooOld, c.Altered, e.Pending+e.Doing+e.Answered, e.Uncertain, e.Dead)
		}
		errs = append(errs, g.print(p.stdout))
	}
	for i := range in.Consumers {
		c := &in.Consumers[i]
		for _, problem := range c.Problems {
			q.wrap(p, p.stdout, "", "  ", plain(c.Consumer+": "+strings.TrimPrefix(problem, string(c.State)+": ")))
		}
	}
	errs = append(errs, q.printHandlers(p, in))
	if len(in.pauses) > 0 {
		errs = append(errs, q.printPauses(p, p.stdout, in.pauses))
	}
	return errors.Join(errs...)
}
