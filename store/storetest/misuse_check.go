package storetest

import (
	"errors"
	"slices"
	"strings"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// harmful tells whether the abuse keeps the message from being applied.
func (m *misuse[TX]) harmful() bool {
	switch {
	case m.fails:
		return true
	case m.abuse.dooms:
		return m.ErrorsDoom
	}
	return m.abuse.says != ""
}

// check checks the outcomes of the messages of an inbox.
func (m *misuse[TX]) check() {
	m.Helper()
	list, err := m.inbox.ListParked(m.ctx(), inbox.Filter{})
	m.ok(err)
	var errs []string
	for i := range list {
		if list[i].ID != misuseID(misuseCalled) {
			errs = append(errs, list[i].LastError)
		}
		if string(list[i].Payload) != misusePayload {
			m.Errorf("message is parked with the payload %q", list[i].Payload)
		}
	}
	m.checkWith(errs)
}

// checkWith checks effects and events. errs are the errors of messages that wait for an operator.
func (m *misuse[TX]) checkWith(errs []string) {
	m.Helper()
	m.checkLeft()
	m.checkEffects(errs)
	m.checkErrors(errs)
}

// checkLeft checks that a function has left neither its transaction nor its settings behind.
func (m *misuse[TX]) checkLeft() {
	m.Helper()
	close(m.returned)
	m.behind.Wait()
	for _, tx := range m.kept {
		if m.Effect(m.ctx(), tx, "later") == nil {
			m.Error("the transaction works after its handler has returned")
		}
	}
	if state := m.stateNow(); state != m.state {
		m.Errorf("state is %s on the connection afterwards, want %s", state, m.state)
	}
}

// effects returns the effects, except the effect of the message that an abuse handles; it checks
// this message.
func (m *misuse[TX]) effects() []string {
	m.Helper()
	effects, err := m.Effects(m.ctx())
	m.ok(err)
	called := 0
	effects = slices.DeleteFunc(effects, func(name string) bool {
		if name != misuseName(misuseCalled) {
			return false
		}
		called++
		return true
	})
	if called > 1 || m.called && called == 0 {
		m.Errorf("message handled within another handler: taken %t, %d effects", m.called, called)
	}
	return effects
}

// checkEffects counts effects and events of each message.
func (m *misuse[TX]) checkEffects(errs []string) {
	m.Helper()
	effects := m.effects()
	stats, err := m.outbox.Stats(m.ctx())
	m.ok(err)
	applied := 0
	for n := range misuseMessages {
		count := 0
		for _, name := range effects {
			if name == misuseName(n) {
				count++
			}
		}
		applied += count
		want := 1
		if n == culprit && m.harmful() {
			want = 0
		}
		if count > 1 || count != want && !m.abuse.past {
			m.Errorf("message %d has %d effects, want %d", n, count, want)
		}
	}
	if m.abuse.past { // a part may be committed; every incomplete message waits for an operator
		if whole := misuseMessages - len(errs); whole > int(stats.Pending) || len(errs) == 0 {
			m.Errorf("%d messages pass for applied, with %d events; errors are %q", whole, stats.Pending, errs)
		}
	} else if len(effects) != applied || int(stats.Pending) != applied {
		m.Errorf("effects are %q, events %d", effects, stats.Pending)
	}
}

// checkErrors checks the errors that the operator sees.
func (m *misuse[TX]) checkErrors(errs []string) {
	m.Helper()
	if !m.harmful() {
		if len(errs) > 0 {
			m.Errorf("errors are %q", errs)
		}
		return
	}
	says := m.abuse.says
	if m.fails && !m.abuse.past {
		says = "" // the handler's own error comes first
	}
	if len(errs) == 0 || !strings.Contains(strings.Join(errs, "\n"), says) {
		m.Errorf("errors are %q, want one that says %q", errs, says)
	}
}

// checkOne checks the effect and the event of one function, and its error.
func (m *misuse[TX]) checkOne(err error) {
	m.Helper()
	m.checkLeft()
	effects := m.effects()
	stats, failed := m.outbox.Stats(m.ctx())
	m.ok(failed)
	switch {
	case !m.harmful() && (err != nil || len(effects) != 1 || stats.Pending != 1):
		m.Errorf("effects are %q, events %d, error %v", effects, stats.Pending, err)
	case m.harmful() && (err == nil || !strings.Contains(err.Error(), m.abuse.says)):
		m.Errorf("error is %v, want one that says %q", err, m.abuse.says)
	case m.abuse.past && !errors.Is(err, outbox.ErrCommitUnknown):
		m.Errorf("error is %v, want that the outcome is unknown", err)
	case m.harmful() && !m.abuse.past && (len(effects) != 0 || stats.Pending != 0):
		m.Errorf("effects are %q, events %d", effects, stats.Pending)
	}
}

// checkRequest checks the effect and the event of a request, and the errors that were logged or
// returned.
func (m *misuse[TX]) checkRequest(errs []string) {
	m.Helper()
	m.checkLeft()
	m.checkErrors(errs)
	effects := m.effects()
	stats, err := m.outbox.Stats(m.ctx())
	m.ok(err)
	want := 1
	if m.harmful() {
		want = 0
	}
	if len(effects) > 1 || !m.abuse.past && (len(effects) != want || int(stats.Pending) != want) {
		m.Errorf("effects are %q, events %d, want %d", effects, stats.Pending, want)
	}
}
