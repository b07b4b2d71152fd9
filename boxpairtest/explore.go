package boxpairtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

const (
	// cleanRuns is how often a handler is run to its end to see whether it does the same each time:
	// a loop over a map with two keys has the same order in all of them once in 500 times.
	cleanRuns = 10
	maxOrders = 6
)

// Subject is a service whose handler [Explore] runs, with a database of its own.
type Subject struct {
	// Start starts the service as a new process does, and returns its handler: the method Consume of
	// a consumer.Handler, or what middleware.Wrap returns. The inbox need not run. Start is called
	// again on the same database when the process has crashed.
	Start func() (message.NoPublishHandlerFunc, error)
	// Events are what the handler gets, each as a message of its own, in this order.
	Events []producer.Event
	// Producer is the name of the outbox that writes Events. Defaults to "test".
	Producer string
	// State returns what the handler changes, in its database and elsewhere: rows ([Tables]), mails
	// that a fake has sent, files. Values are compared as JSON. It is called between two runs.
	State func(ctx context.Context) (any, error)
	// KeepsOrder says that messages of one key arrive in order, as with HandlerConfig.Order.ByKey.
	// Defaults to false: other orders of all messages are tried.
	KeepsOrder bool
}

// Explore runs a handler with a fault at each place where its process may crash, and fails the test
// for each thing that is not as if the handler had run once:
//
//   - the connection to the database is lost at each statement, and the handler returns nil
//   - a run is rolled back (at a statement, or at COMMIT), and has changed something nevertheless
//   - the handler commits another transaction
//   - an event, or the text of a statement, differs between two runs: a payload with the time, a
//     child dispatch ID that depends on the order of a map
//   - the answer to COMMIT is lost, or a copy of the message comes, also to a new process, and
//     something changes again
//   - the messages come in another order, and the state at the end is another one
//
// setup makes the service, on a new or empty database; it is called once, and for each order that is
// tried. Arguments of statements are not compared, since a run that was rolled back leaves no trace
// of them. Explore does not wait: what a handler starts in the background may be seen late.
func Explore(t testing.TB, setup func(t testing.TB) Subject) {
	t.Helper()
	findings, runs, err := explore(t, setup)
	if err != nil {
		t.Fatalf("boxpairtest: explore: %v", err)
	}
	for _, f := range findings {
		t.Errorf("boxpairtest: %s", f)
	}
	t.Logf("boxpairtest: explored in %d runs: %d findings", runs, len(findings))
}

// exploration is what is known of one subject.
type exploration struct {
	ctx      context.Context
	s        Subject
	handle   message.NoPublishHandlerFunc
	msgs     []*message.Message
	runs     int
	findings []string
}

func explore(t testing.TB, setup func(t testing.TB) Subject) (findings []string, runs int, err error) {
	t.Helper()
	x, err := begin(t, setup)
	if err != nil {
		return nil, 0, err
	}
	for i := range x.msgs {
		if err := x.message(i); err != nil {
			return nil, 0, fmt.Errorf("event %d (%s): %w", i, x.s.Events[i].Topic, err)
		}
	}
	findings, runs = x.findings, x.runs
	if len(x.msgs) > 1 {
		var first string
		for i, order := range orders(x.s) {
			o, err := begin(t, setup)
			if err != nil {
				return nil, 0, err
			}
			state, problem, err := o.inOrder(order)
			runs += o.runs
			switch {
			case err != nil:
				return nil, 0, fmt.Errorf("order %v: %w", order, err)
			case problem != "":
				findings = append(findings, problem)
			case i == 0:
				first = state
			default:
				if d := difference(first, state); d != "" {
					findings = append(findings, fmt.Sprintf("the events in the order %v leave another state than in the order %v:\n%s", order, orders(x.s)[0], d))
				}
			}
		}
	}
	return findings, runs, nil
}

func begin(t testing.TB, setup func(t testing.TB) Subject) (*exploration, error) {
	t.Helper()
	s := setup(t)
	var errs []error
	if s.Start == nil {
		errs = append(errs, errors.New("Subject.Start is nil"))
	}
	if s.State == nil {
		errs = append(errs, errors.New("Subject.State is nil"))
	}
	if len(s.Events) == 0 {
		errs = append(errs, errors.New("Subject.Events is empty"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if s.Producer == "" {
		s.Producer = "test"
	}
	x := &exploration{ctx: t.Context(), s: s, msgs: Messages(t, s.Producer, s.Events...)}
	return x, x.restart()
}

// restart ends the process, and starts another one.
func (x *exploration) restart() (err error) {
	x.handle, err = x.s.Start()
	if err == nil && x.handle == nil {
		err = errors.New("Subject.Start has returned no handler")
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

func (x *exploration) state() (string, error) {
	v, err := x.s.State(x.ctx)
	if err != nil {
		return "", fmt.Errorf("State: %w", err)
	}
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return "", fmt.Errorf("State: %w", err)
	}
	return string(text), nil
}

// run delivers a message with what a plans. It returns what the handler's state was before and is
// after.
func (x *exploration) run(msg *message.Message, a *attempt) (before, after string, err error) {
	if before, err = x.state(); err != nil {
		return "", "", err
	}
	x.runs++
	failed := x.handle(copyOf(observe.Context(x.ctx, &observer{attempt: a}), msg))
	if after, err = x.state(); err != nil {
		return "", "", err
	}
	if failed != nil && !a.ran {
		return "", "", fmt.Errorf("the message was not handled: %w", failed)
	}
	return before, after, nil
}

// message explores the handling of one message.
func (x *exploration) message(i int) error {
	m := &messageExploration{exploration: x, msg: x.msgs[i], name: nameOf(i, &x.s.Events[i])}
	model := &attempt{crash: true}
	before, after, err := x.run(m.msg, model)
	if err != nil {
		return err
	}
	if model.returned != nil {
		m.find("the handler fails: %v", model.returned)
		return nil
	}
	m.model = model
	for _, n := range model.nested {
		m.find("the handler commits another transaction, %s: it stays when the handler's own transaction is rolled back", place(model.statements, n+1))
	}
	escaped := difference(before, after)
	if err := m.losses(escaped != ""); err != nil {
		return err
	}
	if escaped != "" && !m.located {
		m.find("an effect outside of the transaction, %s: the run was rolled back, but has left\n%s", place(model.statements, len(model.statements)+1), escaped)
	}
	for range cleanRuns - 1 {
		a := &attempt{crash: true}
		if _, _, err := x.run(m.msg, a); err != nil {
			return err
		}
		m.compare(a)
	}
	return m.commit()
}

// messageExploration is what is known of one message.
type messageExploration struct {
	*exploration
	msg     *message.Message
	name    string
	model   *attempt // a run that was rolled back at its COMMIT
	located bool     // the place of an escaped effect was found
	changed bool     // a difference between runs was found
}

func nameOf(i int, e *producer.Event) string {
	name := fmt.Sprintf("event %d (%s", i, e.Topic)
	if e.Key != "" {
		name += ", key " + e.Key
	}
	return name + ")"
}

func (m *messageExploration) find(format string, args ...any) {
	m.findings = append(m.findings, m.name+": "+fmt.Sprintf(format, args...))
}

// losses has the connection lost at each statement.
func (m *messageExploration) losses(escapes bool) error {
	for k := 1; k <= len(m.model.statements); k++ {
		a := &attempt{lostAt: k}
		before, after, err := m.run(m.msg, a)
		if err != nil {
			return err
		}
		if d := difference(before, after); d != "" && !m.located {
			m.located = true
			how := "the run was rolled back, but has left"
			if !escapes {
				how = "the handler has met the error, and has left"
			}
			m.find("an effect outside of the transaction, %s: %s\n%s", place(m.model.statements, k), how, d)
		}
		if a.ran && a.returned == nil && len(a.statements) >= k {
			m.find("the handler returns nil although %s has failed: without a transaction that notices, the effect is lost", statement(a.statements, k))
		}
		m.compareStatements(a)
	}
	return nil
}

// compare finds what differs between two runs from the same state.
func (m *messageExploration) compare(a *attempt) {
	if a.returned != nil && !m.changed {
		m.changed = true
		m.find("the handler fails in another run: %v", a.returned)
	}
	m.compareStatements(a)
	if m.changed {
		return
	}
	for i := range max(len(a.events), len(m.model.events)) {
		if i >= len(a.events) || i >= len(m.model.events) {
			m.changed = true
			m.find("the number of written events differs between runs: %d, and %d", len(m.model.events), len(a.events))
			return
		}
		if d := eventDifference(m.model.events[i].Record.(outbox.Record), a.events[i].Record.(outbox.Record)); d != "" {
			m.changed = true
			m.find("written event %d differs between runs, %s: %s", i, place(m.model.statements, m.model.events[i].After+1), d)
			return
		}
	}
}

func (m *messageExploration) compareStatements(a *attempt) {
	n := len(m.model.statements)
	if a.lostAt > 0 {
		n = min(a.lostAt, n) // a handler that goes on does so in its own way
	}
	for i := range n {
		if m.changed || i < len(a.statements) && a.statements[i] == m.model.statements[i] {
			continue
		}
		m.changed = true
		other := "none"
		if i < len(a.statements) {
			other = shorten(a.statements[i], 120)
		}
		m.find("%s differs between runs: %s", statement(m.model.statements, i+1), other)
	}
	if !m.changed && a.lostAt == 0 && len(a.statements) > n {
		m.changed = true
		m.find("%s is not there in another run", statement(a.statements, n+1))
	}
}

// eventDifference tells what differs between the events of two runs.
func eventDifference(a, b outbox.Record) string {
	var list []change
	field := func(name string, a, b any) {
		if a != b {
			list = append(list, change{name, fmt.Sprint(a), fmt.Sprint(b)})
		}
	}
	field("Topic", a.Topic, b.Topic)
	field("Key", a.Key, b.Key)
	field("Type", a.Type, b.Type)
	field("dispatch ID", a.ID, b.ID)
	field("SchemaVersion", a.SchemaVersion, b.SchemaVersion)
	field("ContentType", a.ContentType, b.ContentType)
	field("Headers", fmt.Sprint(a.Headers), fmt.Sprint(b.Headers))
	list = append(list, payloadDifferences(a.Payload, b.Payload)...)
	texts := make([]string, len(list))
	for i, c := range list {
		texts[i] = fmt.Sprintf("%s is %s, and %s", c.field, c.first, c.second)
	}
	return strings.Join(texts, "; ")
}

// commit has the message handled, with the answer to the COMMIT lost, and delivers copies.
func (m *messageExploration) commit() error {
	a := &attempt{unsure: true, retry: true}
	_, state, err := m.run(m.msg, a)
	if err != nil {
		return err
	}
	m.compare(a)
	if a.again {
		m.find("the handler was run again after the answer to its COMMIT was lost")
	}
	for _, copied := range []string{"a copy of the message", "a copy of the message that comes to a new process"} {
		again := &attempt{}
		_, after, err := m.run(m.msg, again)
		if err != nil {
			return err
		}
		if again.ran && a.returned == nil {
			m.find("%s has the handler run again", copied)
		}
		if d := difference(state, after); d != "" {
			m.find("%s changes\n%s", copied, d)
		}
		state = after
		if err := m.restart(); err != nil {
			return err
		}
	}
	return nil
}

// inOrder delivers all messages in an order, and returns the state afterwards. A message whose
// handler fails comes again after the others.
func (x *exploration) inOrder(order []int) (state, problem string, err error) {
	left := slices.Clone(order)
	var last error
	for round := 0; len(left) > 0; round++ {
		if round > len(order) {
			return "", fmt.Sprintf("the events in the order %v: %s still fails when all others were handled: %v", order, nameOf(left[0], &x.s.Events[left[0]]), last), nil
		}
		var again []int
		held := make(map[string]bool)
		for _, i := range left {
			if key := x.s.Events[i].Key; x.s.KeepsOrder && held[key] && key != "" {
				again = append(again, i)
				continue
			}
			a := &attempt{retry: true}
			if _, _, err := x.run(x.msgs[i], a); err != nil {
				return "", "", err
			}
			if a.returned != nil {
				again, last = append(again, i), a.returned
				held[x.s.Events[i].Key] = true
			}
		}
		left = again
	}
	state, err = x.state()
	return state, "", err
}

// orders returns the order of the events, and others.
func orders(s Subject) [][]int {
	first := make([]int, len(s.Events))
	for i := range first {
		first[i] = i
	}
	list := [][]int{first}
	random := rand.New(rand.NewPCG(1, 2)) // the same orders each time
	for n := range 10 * maxOrders {
		order := slices.Clone(first)
		if n == 0 {
			slices.Reverse(order)
		} else {
			random.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		}
		if s.KeepsOrder {
			keepKeys(order, s.Events)
		}
		if !slices.ContainsFunc(list, func(o []int) bool { return slices.Equal(o, order) }) {
			list = append(list, order)
		}
		if len(list) == maxOrders {
			break
		}
	}
	return list
}

// keepKeys puts the events of each key in order, in the places that they have together.
func keepKeys(order []int, events []producer.Event) {
	places := make(map[string][]int)
	for at, i := range order {
		if key := events[i].Key; key != "" {
			places[key] = append(places[key], at)
		}
	}
	for _, at := range places {
		sorted := make([]int, len(at))
		for k, p := range at {
			sorted[k] = order[p]
		}
		slices.Sort(sorted)
		for k, p := range at {
			order[p] = sorted[k]
		}
	}
}

// place names the place before statement k, from 1.
func place(statements []string, k int) string {
	switch {
	case len(statements) == 0:
		return "in a handler without statements"
	case k > len(statements):
		return "after " + statement(statements, len(statements))
	}
	return "before " + statement(statements, k)
}

func statement(statements []string, k int) string {
	return fmt.Sprintf("statement %d (%s)", k, shorten(statements[k-1], 80))
}

// difference returns the lines that are in one of two texts only.
func difference(before, after string) string {
	count := make(map[string]int)
	for line := range strings.Lines(after) {
		count[trim(line)]++
	}
	var b strings.Builder
	for line := range strings.Lines(before) {
		if count[trim(line)]--; count[trim(line)] < 0 {
			fmt.Fprintf(&b, "    - %s\n", trim(line))
		}
	}
	for line := range strings.Lines(after) {
		if count[trim(line)] > 0 {
			count[trim(line)]--
			fmt.Fprintf(&b, "    + %s\n", trim(line))
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// trim returns a line of JSON without its indentation and its comma.
func trim(line string) string { return strings.TrimSuffix(strings.TrimSpace(line), ",") }
