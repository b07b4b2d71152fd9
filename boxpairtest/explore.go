package boxpairtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// cleanRuns is how many complete runs of a handler are compared. A loop over a map with two keys has
// the same order in all of these runs once in 500 times.
const cleanRuns = 10

// Subject is a service whose handler [Explore] runs, with a database of its own.
type Subject struct {
	// Start starts the service as a new process does, and returns its handler: the method Consume of
	// a consumer.Handler, or the result of middleware.Wrap. The inbox need not run. Start is called
	// again on the same database when the process has crashed.
	Start func() (message.NoPublishHandlerFunc, error)
	// Events reach the handler in this order, each as a message of its own.
	Events []producer.Event
	// Messages come after Events, such as messages of other programs.
	Messages []*message.Message
	// Producer is the name of the outbox that writes Events. Defaults to "test".
	Producer string
	// State returns the state that the handler changes, in its database and elsewhere: rows
	// ([Tables]), mails that a fake has sent, files. Values are compared as JSON. State is called
	// between two runs.
	State func(ctx context.Context) (any, error)
	// OrderByKey says that messages of one key arrive in order, as with HandlerConfig.Order.ByKey.
	// Defaults to false: messages of one key are reordered, too.
	OrderByKey bool
}

// Explore runs a handler with a fault at each place where its process may crash (fault injection),
// and fails the test for each difference from a single run of the handler:
//
//   - a run is rolled back, at a statement or at COMMIT, and leaves a change
//   - the handler commits another transaction
//   - a statement fails, and the handler returns nil
//   - an event, or the text of a statement, differs between two runs: a payload with the time, a
//     child dispatch ID that depends on the order of a map
//   - the answer to COMMIT is lost, or a copy of the message comes, also to a new process, and the
//     state changes again
//   - the messages come in another order, and the final state or events differ
//
// A message that the handler rejects (consumer.Reject) must leave no change. setup makes the service,
// on a new or empty database, and is called once, and again for each order of the messages.
//
// Arguments of statements are not compared: a run that was rolled back leaves no trace of arguments.
// The handler gets one message at a time, also in a group or as a batch. Reads through another
// connection are not noticed, and the handler's work in the background may come too late.
func Explore(t testing.TB, setup func(t testing.TB) Subject) {
	t.Helper()
	findings := 0
	runs, err := explore(t, setup, func(finding string) {
		t.Helper()
		findings++
		t.Errorf("boxpairtest: %s", finding)
	})
	if err != nil {
		t.Fatalf("boxpairtest: explore: %v", err)
	}
	t.Logf("boxpairtest: explored in %d runs: %d findings", runs, findings)
}

// exploration is the exploration of one subject.
type exploration struct {
	ctx    context.Context
	s      Subject
	handle message.NoPublishHandlerFunc
	msgs   []*message.Message
	names  []string // of the messages
	runs   int
	report func(finding string)
	known  map[string]bool // findings of earlier messages
	failed bool            // a handler fails without a fault
	events []string        // committed events
}

// explore calls report for each finding as soon as it is known.
func explore(t testing.TB, setup func(t testing.TB) Subject, report func(finding string)) (runs int, err error) {
	t.Helper()
	x, err := begin(t, setup, report)
	if err != nil {
		return 0, err
	}
	for i := range x.msgs {
		if err := x.message(i); err != nil {
			return 0, fmt.Errorf("%s: %w", x.names[i], err)
		}
	}
	runs = x.runs
	if len(x.msgs) == 1 || x.failed {
		return runs, nil
	}
	var first string
	all := orders(x.msgs, x.s.OrderByKey)
	for i, order := range all {
		o, err := begin(t, setup, report)
		if err != nil {
			return 0, err
		}
		state, err := o.inOrder(order)
		runs += o.runs
		switch {
		case err != nil:
			return 0, fmt.Errorf("order %v: %w", order, err)
		case i == 0:
			first = state
		case state != first && state != "":
			report(fmt.Sprintf("the messages in the order %v leave another state than in the order %v (a time, or a number from a sequence, differs anyway: see Tables):\n%s",
				order, all[0], difference(first, state)))
		}
	}
	return runs, nil
}

func begin(t testing.TB, setup func(t testing.TB) Subject, report func(finding string)) (*exploration, error) {
	t.Helper()
	s := setup(t)
	var errs []error
	if s.Start == nil {
		errs = append(errs, errors.New("Subject.Start is nil"))
	}
	if s.State == nil {
		errs = append(errs, errors.New("Subject.State is nil"))
	}
	if len(s.Events)+len(s.Messages) == 0 {
		errs = append(errs, errors.New("Subject.Events is empty"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if s.Producer == "" {
		s.Producer = "test"
	}
	x := &exploration{ctx: t.Context(), s: s, report: report, known: make(map[string]bool)}
	x.msgs = append(Messages(t, s.Producer, s.Events...), s.Messages...)
	for i, msg := range x.msgs {
		name := fmt.Sprintf("message %d (", i)
		if i < len(s.Events) {
			name += s.Events[i].Topic
		} else {
			name += msg.UUID
		}
		if key := msg.Metadata[transport.MetaKey]; key != "" {
			name += ", key " + key
		}
		x.names = append(x.names, name+")")
	}
	return x, x.restart()
}

// restart replaces the process by a new process.
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

// run delivers a message with the faults of a, and returns the state before and after the run.
func (x *exploration) run(msg *message.Message, a *attempt) (before, after string, err error) {
	if before, err = x.state(); err != nil {
		return "", "", err
	}
	x.runs++
	failed := x.handle(copyOf(observe.Context(msg.Context(), a), msg))
	a.close()
	if after, err = x.state(); err != nil {
		return "", "", err
	}
	switch {
	case a.ran: // a has the outcome
	case failed != nil:
		return "", "", fmt.Errorf("the handler was not run: %w", failed)
	case a.parked != "":
		return "", "", fmt.Errorf("the handler was not run, and the message was %s", a.parked)
	}
	return before, after, nil
}

// messageExploration is the exploration of one message.
type messageExploration struct {
	*exploration
	msg     *message.Message
	name    string
	model   *attempt // a run that was rolled back at its COMMIT
	located bool     // the place of an escaped effect was found
	changed bool     // a difference between runs was found
}

// find reports a finding, once for all messages.
func (m *messageExploration) find(format string, args ...any) {
	finding := fmt.Sprintf(format, args...)
	if !m.known[finding] {
		m.known[finding] = true
		m.report(m.name + ": " + finding)
	}
}

// message explores the handling of one message.
func (x *exploration) message(i int) error {
	m := &messageExploration{exploration: x, msg: x.msgs[i], name: x.names[i], model: &attempt{crash: true}}
	before, after, err := x.run(m.msg, m.model)
	if err != nil {
		return err
	}
	if !m.model.ran {
		return errors.New("the handler was not run: the inbox takes the message for a duplicate")
	}
	for _, n := range m.model.nested {
		m.find("the handler commits another transaction, %s: it stays when the handler's own transaction is rolled back", place(m.model.statements, n+1))
	}
	rejected := consumer.Rejected(m.model.returned)
	if m.model.returned != nil && !rejected {
		x.failed = true
		m.find("the handler fails: %v%s", m.model.returned, hint(m.model.returned))
	}
	escaped := difference(before, after)
	if m.model.returned == nil {
		if err := m.losses(escaped != ""); err != nil {
			return err
		}
	}
	if escaped != "" && !m.located {
		m.located = true
		m.find("an effect outside of the transaction, %s: the run was rolled back, but has left\n%s", m.afterLast(), escaped)
	}
	if m.model.returned != nil {
		return nil
	}
	for range cleanRuns - 1 {
		a := &attempt{crash: true}
		if _, after, err = x.run(m.msg, a); err != nil {
			return err
		}
		m.compare(a)
	}
	if late := difference(before, after); late != "" && !m.located {
		m.find("an effect outside of the transaction, somewhere in the handler or in what it has started: the runs were rolled back, but have left\n%s", late)
	}
	return m.commit()
}

// afterLast names the place of an effect that no lost connection has located.
func (m *messageExploration) afterLast() string {
	if len(m.model.statements) == 0 || m.model.returned != nil {
		return "somewhere in the handler"
	}
	return place(m.model.statements, len(m.model.statements)+1) + ", or once in a process"
}

// losses loses the connection at each statement, and then lets each statement fail.
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
		m.compareStatements(a)
		a = &attempt{failAt: k}
		if _, _, err := m.run(m.msg, a); err != nil {
			return err
		}
		if a.returned == nil && len(a.statements) >= k && !a.excused {
			m.find("the handler returns nil although %s has failed: a database that goes on after an error commits without the effect", statement(a.statements, k))
		}
	}
	return nil
}

// compare finds differences between two runs from the same state.
func (m *messageExploration) compare(a *attempt) {
	if a.returned != nil && !m.changed {
		m.changed = true
		m.find("the handler fails in another run: %v", a.returned)
	}
	m.compareStatements(a)
	for i := range max(len(a.events), len(m.model.events)) {
		if m.changed {
			return
		}
		if i >= len(a.events) || i >= len(m.model.events) {
			m.changed = true
			m.find("the number of written events differs between runs: %d, and %d", len(m.model.events), len(a.events))
			return
		}
		model := m.model.events[i]
		if d := eventDifference(model.Record.(outbox.Record), a.events[i].Record.(outbox.Record)); d != "" {
			m.changed = true
			m.find("written event %d differs between runs, %s: %s", i, place(m.model.statements[:model.After], model.After+1), d)
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
		switch {
		case i < len(a.statements):
			other = shorten(a.statements[i], 120)
		case a.returned != nil:
			other = fmt.Sprintf("none, since the handler fails: %v%s", a.returned, hint(a.returned))
		}
		m.find("%s differs between runs: %s", statement(m.model.statements, i+1), other)
	}
	if !m.changed && a.lostAt == 0 && len(a.statements) > n {
		m.changed = true
		m.find("%s is not there in another run", statement(a.statements, n+1))
	}
}

// eventDifference returns the differences between an event of two runs.
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

// commit lets the handler commit, loses the answer to the COMMIT, and delivers copies.
func (m *messageExploration) commit() error {
	a := &attempt{unsure: true, retry: true}
	_, state, err := m.run(m.msg, a)
	if err != nil {
		return err
	}
	m.compare(a)
	switch {
	case a.returned != nil:
		m.failed = true
		m.find("the handler fails when it may commit: %v", a.returned)
		return nil
	case !a.committed:
		m.failed = true
		m.find("COMMIT fails: %v", a.ended)
		return nil
	case a.again:
		m.find("the handler was run again after the answer to its COMMIT was lost")
	}
	for _, copied := range []string{"a copy of the message", "a copy of the message that comes to a new process"} {
		again := &attempt{}
		_, after, err := m.run(m.msg, again)
		if err != nil {
			return err
		}
		if again.ran {
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

// inOrder delivers all messages in an order, and returns the state and the events afterwards, or ""
// if a handler fails for good. A message whose handler fails comes again after all messages.
func (x *exploration) inOrder(order []int) (string, error) {
	left := slices.Clone(order)
	var last error
	for round := 0; len(left) > 0; round++ {
		if round > len(order) {
			x.report(fmt.Sprintf("the messages in the order %v: %s still fails when all others were handled: %v", order, x.names[left[0]], last))
			return "", nil
		}
		var again []int
		held := make(map[string]bool)
		for _, i := range left {
			key := x.msgs[i].Metadata[transport.MetaKey]
			if x.s.OrderByKey && key != "" && held[key] {
				again = append(again, i)
				continue
			}
			a := &attempt{retry: true}
			if _, _, err := x.run(x.msgs[i], a); err != nil {
				return "", err
			}
			if a.committed {
				x.collect(a.events)
			} else if err := cmp.Or(a.returned, a.ended); !consumer.Rejected(err) {
				again, last = append(again, i), err
				held[key] = true
			}
		}
		left = again
	}
	state, err := x.state()
	slices.Sort(x.events)
	return state + "\n" + strings.Join(x.events, "\n"), err
}

func (x *exploration) collect(events []observe.Event) {
	for _, e := range events {
		r := e.Record.(outbox.Record)
		x.events = append(x.events, "event "+summary(r.Topic, r.Key, r.Type, r.Source, r.Version, r.Payload))
	}
}
