package audit_test

import (
	"strings"
	"testing"

	"github.com/boxpair/boxpair/audit"
)

func TestConsumerThatNoInboxKnowsCannotBeChecked(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		for _, c := range []struct {
			change func(*audit.Config)
			want   string
		}{
			{func(c *audit.Config) { c.Expect[0].Consumer = "inventory/typo" }, `consumer "inventory/typo": no given inbox knows it (they know ["inventory/reserve"])`},
			{func(c *audit.Config) {
				c.Inboxes = append(c.Inboxes, audit.NamedInbox{Name: "copy", Inbox: p.in.auditor})
			}, "is in stock and in copy"},
		} {
			cfg := p.config()
			c.change(&cfg)
			a, err := audit.New(cfg)
			ok(t, err)
			if _, err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run() = %v, want %q", err, c.want)
			}
		}
	})
}

func TestTopicsThatNobodyExpectsAreCounted(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.in.run(`DELETE FROM {inbox} WHERE dispatch_id = $1`, p.in.id(p.ids[0]))
		report := p.audit(func(c *audit.Config) { c.Expect[0].Topics = []string{"payment.*"} })
		p.want(report, nil) // applied, committed, and of a topic that no consumer expects
		if report.Outboxes[0].NobodyExpects != delivered || report.Consumers[0].Expected != 0 {
			t.Errorf("%+v, %+v", report.Outboxes, report.Consumers)
		}
	})
}

func TestPartialConsumerMayApplyWhatNoGivenOutboxCommitted(t *testing.T) {
	each(t, func(_ *testing.T, p *pairRig) {
		p.out.run(`DELETE FROM {outbox_events} WHERE dispatch_id = $1`, p.out.id(p.ids[3]))
		p.want(p.audit(func(c *audit.Config) { c.Expect[0].Partial = true }), nil)
	})
}

func TestSecondOutboxAndConsumerAreChecked(t *testing.T) {
	t.Parallel()
	// PostgreSQL and SQLite are audited side by side, each a producer and a consumer.
	a, b := newPair(t, databases["postgres"]), newPair(t, databases["sqlite"])
	cfg := audit.Config{
		Outboxes: []audit.NamedOutbox{{Name: "a", Outbox: a.out.auditor}, {Name: "b", Outbox: b.out.auditor}},
		Inboxes:  []audit.NamedInbox{{Name: "a", Inbox: a.in.auditor}, {Name: "b", Inbox: b.in.auditor}},
		Expect:   []audit.Expectation{{Consumer: name, Topics: []string{topic}}, {Consumer: "other", Topics: []string{"order.#"}}},
		PageSize: 5,
	}
	b.in.run(`UPDATE {inbox_consumers} SET name = 'other'`)
	check := func() *audit.Report {
		t.Helper()
		audit, err := audit.New(cfg)
		ok(t, err)
		report, err := audit.Run(t.Context())
		ok(t, err)
		return report
	}
	// Both outboxes hold the same events, so each consumer has applied the events of both.
	report := check()
	a.want(report, nil)
	if report.Consumers[0].Expected != 2*delivered || report.Consumers[1].Expected != 2*delivered {
		t.Errorf("%+v", report.Consumers)
	}
	b.in.run(`DELETE FROM {inbox} WHERE dispatch_id = $1`, b.in.id(b.ids[9]))
	report = check()
	a.want(report, map[audit.Kind]int{audit.NotApplied: 2})
	for _, f := range report.Examples {
		if f.Consumer != "other" || f.DispatchID != b.ids[9] {
			t.Errorf("found %+v", f)
		}
	}
}

func TestOutboxIsCheckedWithoutAnyInbox(t *testing.T) {
	each(t, func(_ *testing.T, p *pairRig) {
		alone := func(c *audit.Config) { c.Inboxes, c.Expect = nil, nil }
		p.want(p.audit(alone), nil)
		p.parkEvent(100, "dead")
		p.wantOne(p.audit(alone), audit.Dead)
	})
}

func TestExamplesAreLimitedAndCountsAreNot(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.in.run(`DELETE FROM {inbox}`)
		report := p.audit(func(c *audit.Config) { c.Examples = 3 })
		p.want(report, map[audit.Kind]int{audit.NotApplied: delivered})
		if len(report.Examples) != 3 {
			t.Errorf("%d examples", len(report.Examples))
		}
	})
}
