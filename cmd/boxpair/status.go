package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

var status = command{
	name:    "status",
	summary: "show whether an outbox or an inbox is healthy, and what waits in it",
	details: `Prints whether an outbox is healthy, degraded or unhealthy, with the reasons; how many events wait, and the age of the oldest; how
many events are deferred or parked; how many relays run, and to which topics they cannot send; the pauses in force. With -inbox, the
state of each consumer, and the pauses.

    boxpair status -outbox postgres://monitor@orders/shop -json
    boxpair status -inbox postgres://monitor@stock/stock -consumer stock/reserve -fail degraded

Exit status: 0 the state is better than -fail, 1 the state is as bad as -fail or worse, 2 the state could not be read.`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		q := &inspection{fail: health.Unhealthy}
		q.define(s)
		return q.run
	},
}

// inspection holds the settings of status.
type inspection struct {
	selection // only its databases and the filter's Consumer are used

	thresholds health.Config
	fail       health.State // "" for never
	asJSON     bool
}

func (q *inspection) define(s *settings) {
	c := &q.thresholds
	s.urls(&q.outboxes, "outbox", "the database of the outbox.")
	s.urls(&q.inboxes, "inbox", "the database of the inbox.")
	s.text(&q.filter.Consumer, "consumer", "NAME", "only this consumer of the inbox, such as stock/reserve. Defaults to all.")
	s.add("fail", envOf("fail"), "STATE", "the state from which on the exit status is 1: degraded, unhealthy or never. Defaults to unhealthy.", false, q.setFail)
	s.duration(&c.DegradedAge, "degraded-age", "the age of the oldest waiting event or message from which on the state is degraded. Defaults to 1m.")
	s.duration(&c.UnhealthyAge, "unhealthy-age", "the age from which on the state is unhealthy. Defaults to 10m, or to -degraded-age if that is longer.")
	s.count(&c.DegradedPending, "degraded-pending", "the number of waiting events or messages from which on the state is degraded. Defaults to 10000.")
	s.count(&c.UnhealthyPending, "unhealthy-pending", "the number from which on the state is unhealthy. Defaults to none.")
	s.count(&c.DegradedDead, "degraded-dead", "the number of events or messages for an operator from which on the state is degraded. Defaults to 1.")
	s.count(&c.UnhealthyDead, "unhealthy-dead", "the number from which on the state is unhealthy. Defaults to 100, or to -degraded-dead if that is more.")
	s.on(&q.asJSON, "json", "print one JSON object instead of a table.")
	q.places.define(s)
}

func (q *inspection) setFail(text string) error {
	states := map[string]health.State{"degraded": health.Degraded, "unhealthy": health.Unhealthy, "never": ""}
	state, known := states[text]
	if !known {
		return errors.New("want degraded, unhealthy or never")
	}
	q.fail = state
	return nil
}

func (q *inspection) run(ctx context.Context, p *process) (int, error) {
	check, err := health.New(q.thresholds)
	if err != nil {
		return exitFailed, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, inspectionTimeout, fmt.Errorf("the database gave no answer within %v", inspectionTimeout))
	defer cancel()
	var state health.State
	err = q.with(ctx, func(s *operators) (err error) {
		if len(q.inboxes) > 0 {
			state, err = q.inbox(ctx, p.stdout, s, check)
		} else {
			state, err = q.outbox(ctx, p.stdout, s, check)
		}
		return err
	})
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return exitFailed, context.Cause(ctx)
	case err != nil:
		return exitFailed, err
	case q.fail != "" && health.Worst(state, q.fail) == state:
		return exitFound, nil
	}
	return exitOK, nil
}

// outboxStatus is the output of status in JSON.
type outboxStatus struct {
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

	Routes []routeStatus `json:"routes"` // routes that do not work; never null
	Pauses []pauseStatus `json:"pauses"` // never null
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

// outbox prints the state of an outbox.
func (q *inspection) outbox(ctx context.Context, out io.Writer, s *operators, check *health.Check) (health.State, error) {
	st, err := s.outbox.Stats(ctx)
	if err != nil {
		return "", err
	}
	stalled, err := s.outbox.ListRoutes(ctx)
	if err != nil {
		return "", err
	}
	pauses, err := s.outbox.Pauses(ctx)
	if err != nil {
		return "", err
	}
	report := check.Routes(check.Outbox(st), stalled)
	if err := q.tables(ctx, s, &report); err != nil {
		return "", err
	}
	causes, err := q.causes(ctx, s, "", st.Dead)
	if err != nil {
		return "", err
	}
	if q.asJSON {
		routes := make([]routeStatus, len(stalled))
		for i, r := range stalled {
			routes[i] = routeStatus{r.Topic, r.Route, string(r.State), r.For.Seconds(), r.LastError, r.Relay}
		}
		return report.State, json.NewEncoder(out).Encode(outboxStatus{
			report, st.Pending, st.PendingCapped, st.OldestPending.Seconds(), st.Deferred, st.Retrying, st.Following, st.Dead, st.Owned, st.Relays, causes,
			routes, pauseStatuses(pauses),
		})
	}
	return report.State, errors.Join(printOutbox(out, &report, &st, causes), printRoutes(out, stalled), printPaused(out, pauses))
}

// printPaused prints pauses as a further section, unless there are none.
func printPaused(out io.Writer, pauses []control.Pause) error {
	if len(pauses) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return printPauses(out, pauses)
}

// printRoutes prints routes as a further section, unless there are none.
func printRoutes(out io.Writer, stalled []outbox.StalledRoute) error {
	if len(stalled) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\ntopic\troute\tstate\tfor\trelay\tlast error\n")
	for i := range stalled {
		r := &stalled[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%v\t%s\t%s\n", plain(r.Topic), plain(r.Route), r.State, r.For.Round(time.Second), plain(r.Relay), plain(r.LastError))
	}
	return w.Flush()
}

// tables adds the problems of the tables themselves to a report.
func (q *inspection) tables(ctx context.Context, s *operators, r *health.Report) error {
	err := s.schema.CheckSchema(ctx)
	if err == nil && len(q.outboxes) > 0 && s.numbers != nil {
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

// cause is a topic and an error that dead events or messages have in common.
type cause struct {
	Topic string `json:"topic"`
	Error string `json:"error"`
	Count int    `json:"count"`
}

const (
	// looked is how many dead events or messages are read for their causes; printed is how many
	// causes are printed.
	looked, printed = 100, 3
	// longest is how many characters of an error are printed.
	longest = 120
)

// causes groups the first dead events or messages by topic and error, the most frequent first. It
// returns nil if the role may not read them.
func (q *inspection) causes(ctx context.Context, s *operators, of string, dead int64) ([]cause, error) {
	if dead == 0 {
		return nil, nil
	}
	chosen := *q
	chosen.filter.Consumer, chosen.filter.States, chosen.filter.Limit = of, []inbox.State{inbox.Dead}, looked
	list, err := chosen.list(ctx, s)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42501" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	counts := make(map[cause]int)
	for i := range list {
		counts[cause{Topic: list[i].Topic, Error: list[i].LastError}]++
	}
	causes := make([]cause, 0, len(counts))
	for c, n := range counts {
		c.Count = n
		causes = append(causes, c)
	}
	slices.SortFunc(causes, func(a, b cause) int {
		return cmp.Or(b.Count-a.Count, strings.Compare(a.Topic, b.Topic), strings.Compare(a.Error, b.Error))
	})
	return causes, nil
}

// printCauses prints the first causes, one per line.
func printCauses(w io.Writer, consumer string, causes []cause) {
	for _, c := range causes[:min(printed, len(causes))] {
		why := []rune(plain(c.Error))
		if len(why) > longest {
			why = append(why[:longest-1], '…')
		}
		fmt.Fprintf(w, "dead: %s%d of topic %s: %s\n", consumer, c.Count, plain(c.Topic), string(why))
	}
	if more := len(causes) - printed; more > 0 {
		fmt.Fprintf(w, "dead: %sand for %d other reasons: boxpair deadletters list\n", consumer, more)
	}
}

// reasons returns the problems of a report, without the prefix of problems with the report's own
// state.
func reasons(r *health.Report) string {
	list := make([]string, len(r.Problems))
	for i, problem := range r.Problems {
		list[i] = plain(strings.TrimPrefix(problem, string(r.State)+": "))
	}
	return strings.Join(list, "; ")
}

func printOutbox(out io.Writer, r *health.Report, s *outbox.Stats, causes []cause) error {
	more := ""
	if s.PendingCapped {
		more = " or more"
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "state\t%s\t%s\n", r.State, reasons(r))
	fmt.Fprintf(w, "pending\t%d%s\toldest %v\n", s.Pending, more, s.OldestPending.Round(time.Millisecond))
	fmt.Fprintf(w, "deferred\t%d\t\nretrying\t%d\t\nfollowing\t%d\t\ndead\t%d\t\n", s.Deferred, s.Retrying, s.Following, s.Dead)
	fmt.Fprintf(w, "relays\t%d\t%d shards owned\n", s.Relays, s.Owned)
	if err := w.Flush(); err != nil {
		return err
	}
	printCauses(out, "", causes)
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

// inbox prints the state of the consumers of an inbox, and returns the worst state.
func (q *inspection) inbox(ctx context.Context, out io.Writer, s *operators, check *health.Check) (health.State, error) {
	names, err := q.consumers(ctx)
	if err != nil {
		return "", err
	}
	pauses, err := s.inbox.Pauses(ctx)
	if err != nil {
		return "", err
	}
	if name := q.filter.Consumer; name != "" {
		pauses = slices.DeleteFunc(pauses, func(p control.Pause) bool { return !p.Consumes(name) })
	}
	worst, list := health.Healthy, make([]consumerStatus, len(names))
	tables := health.Report{State: health.Healthy, Problems: []string{}}
	if err := q.tables(ctx, s, &tables); err != nil {
		return "", err
	}
	worst = health.Worst(worst, tables.State)
	for i, c := range names {
		st, err := s.states.InboxStats(ctx, c.ID)
		if err == nil {
			st.Effects, err = s.states.EffectStats(ctx, c.ID)
		}
		if err != nil {
			return "", fmt.Errorf("consumer %s: %w", c.Name, err)
		}
		list[i] = statusOf(c.Name, check.Inbox(st), &st)
		if list[i].Causes, err = q.causes(ctx, s, c.Name, st.Dead); err != nil {
			return "", fmt.Errorf("consumer %s: %w", c.Name, err)
		}
		worst = health.Worst(worst, list[i].State)
	}
	if q.asJSON {
		return worst, json.NewEncoder(out).Encode(map[string]any{
			"state": worst, "problems": tables.Problems, "consumers": list, "pauses": pauseStatuses(pauses),
		})
	}
	for _, problem := range tables.Problems {
		fmt.Fprintln(out, plain(problem))
	}
	return worst, errors.Join(printConsumers(out, list), printPaused(out, pauses))
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

// consumers reads the registered consumers, by name. An unknown -consumer is an error, since a
// misspelt name must not seem healthy.
func (q *inspection) consumers(ctx context.Context) ([]audit.Consumer, error) {
	a, end, err := openAuditor(ctx, &q.inboxes[0], &q.places, inspectionTimeout)
	if err != nil {
		return nil, err
	}
	defer end()
	list, err := a.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	if name := q.filter.Consumer; name != "" {
		list = slices.DeleteFunc(list, func(c audit.Consumer) bool { return c.Name != name })
		if len(list) == 0 {
			return nil, fmt.Errorf("-consumer: no consumer %q has registered", name)
		}
	}
	slices.SortFunc(list, func(a, b audit.Consumer) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func printConsumers(out io.Writer, list []consumerStatus) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "consumer\tstate\tretrying\tfollowing\toldest\tdead\ttoo old\taltered\teffects open\tuncertain\tdead\twhy\n")
	for i := range list {
		c := &list[i]
		e := &c.Effects
		oldest := time.Duration(c.OldestSeconds * float64(time.Second)).Round(time.Millisecond)
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%v\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", plain(c.Consumer), c.State, c.Retrying, c.Following, oldest,
			c.Dead, c.TooOld, c.Altered, e.Pending+e.Doing+e.Answered, e.Uncertain, e.Dead, reasons(&c.Report))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range list {
		printCauses(out, plain(list[i].Consumer)+": ", list[i].Causes)
	}
	return nil
}
