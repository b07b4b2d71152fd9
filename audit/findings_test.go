package audit_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/audit"
)

func TestCleanPairHasNoFindings(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		report := p.audit(nil)
		p.want(report, nil)
		if o := report.Outboxes[0]; o.Name != "orders" || o.Events != delivered || o.NobodyExpects != 0 || !o.RetainedSince.IsZero() {
			t.Errorf("outbox: %+v", o)
		}
		if c := report.Consumers[0]; c.Name != name || c.Database != "stock" || c.Expected != delivered || c.Claims != delivered {
			t.Errorf("consumer: %+v", c)
		}
		if report.InFlight != 0 || report.Outside != (audit.Outside{}) || len(report.Examples) != 0 || len(report.Unchecked) != 0 {
			t.Errorf("%+v", report)
		}
	})
}

func TestDeliveredAndNotAppliedIsFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.in.run(`DELETE FROM {inbox} WHERE dispatch_id = $1`, p.in.id(p.ids[7]))
		f := p.wantOne(p.audit(nil), audit.NotApplied)
		anHourAgo(t, "its creation", f.Created)
		f.Created = time.Time{}
		want := audit.Finding{
			Kind: audit.NotApplied, Database: "orders", Consumer: name,
			DispatchID: p.ids[7], Seq: 8, Topic: topic, State: audit.Delivered,
		}
		if f != want {
			t.Errorf("found %+v, want %+v", f, want)
		}
	})
}

func TestAppliedAndNeverCommittedIsFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.out.run(`DELETE FROM {outbox_events} WHERE dispatch_id = $1`, p.out.id(p.ids[3]))
		f := p.wantOne(p.audit(nil), audit.NotCommitted)
		anHourAgo(t, "its stamp", f.Created)
		f.Created = time.Time{}
		if want := (audit.Finding{Kind: audit.NotCommitted, Database: "stock", Consumer: name, DispatchID: p.ids[3]}); f != want {
			t.Errorf("found %+v, want %+v", f, want)
		}
	})
}

func TestOtherContentIsFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.in.run(`UPDATE {inbox} SET digest = $1 WHERE dispatch_id = $2`, []byte("sixteen bytes ok"), p.in.id(p.ids[0]))
		f := p.wantOne(p.audit(nil), audit.DigestDiffers)
		if f.DispatchID != p.ids[0] || f.Consumer != name || f.Database != "orders" || f.Topic != topic || f.Seq != 1 {
			t.Errorf("found %+v", f)
		}
	})
}

func TestMessageWithoutDigestFitsAnyContent(t *testing.T) {
	each(t, func(_ *testing.T, p *pairRig) {
		p.in.run(`UPDATE {inbox} SET digest = $1 WHERE dispatch_id = $2`, make([]byte, 16), p.in.id(p.ids[0]))
		p.want(p.audit(nil), nil)
	})
}

func TestPendingForTooLongIsFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		id := p.out.write(event(100))[0]
		p.out.run(`UPDATE {outbox_events} SET created_at = created_at - {hour} WHERE dispatch_id = $1`, p.out.id(id))
		f := p.wantOne(p.audit(nil), audit.Pending)
		if f.DispatchID != id || f.Database != "orders" || f.State != "pending" || f.Topic != topic || f.Consumer != "" {
			t.Errorf("found %+v", f)
		}
		anHourAgo(t, "the time since which it waits", f.Since)
	})
}

func TestReplayedEventIsPendingSinceItsReplay(t *testing.T) {
	each(t, func(_ *testing.T, p *pairRig) {
		p.out.run(`INSERT INTO {outbox_queue} (shard, id, round) SELECT shard, id, 5 FROM {outbox_events} WHERE dispatch_id = $1`, p.out.id(p.ids[2]))
		p.out.run(`INSERT INTO {outbox_attempts} (event_id, at, outcome) VALUES (3, {now}, 'replayed')`)
		report := p.audit(nil)
		p.want(report, nil)
		if report.InFlight != 1 {
			p.Errorf("%d in flight, want the replayed one", report.InFlight)
		}
		p.out.run(`UPDATE {outbox_attempts} SET at = at - {hour}`)
		p.wantOne(p.audit(nil), audit.Pending)
	})
}

// parkEvent parks event i in a state.
func (p *pairRig) parkEvent(i int, state string) uuid.UUID {
	p.Helper()
	id := p.out.write(event(i))[0]
	p.out.run(`UPDATE {outbox_events} SET created_at = created_at - {hour} WHERE dispatch_id = $1`, p.out.id(id))
	p.out.run(`INSERT INTO {outbox_parked} (id, shard, key, state, parked_at, attempts, next_attempt_at, last_error, reason)
		SELECT id, shard, key, '`+state+`', {now} - {hour}, 4, CASE WHEN '`+state+`' = 'retrying' THEN {now} END, 'no route', 'not wanted'
		FROM {outbox_events} WHERE dispatch_id = $1`, p.out.id(id))
	p.out.run(`DELETE FROM {outbox_queue}`)
	return id
}

// parkMessage parks the message of event i in a state.
func (p *pairRig) parkMessage(i int, state string, claimed bool) uuid.UUID {
	p.Helper()
	id := p.ids[i]
	p.in.run(`INSERT INTO {inbox_parked} (consumer, dispatch_id, digest, topic, key, ordered, claimed, stamp, metadata, payload, state,
			attempts, next_attempt_at, parked_at, last_error, reason)
		SELECT consumer, dispatch_id, $2, 'order.placed', 'k', $3, $4, stamp, '{}', $2, '`+state+`',
			6, CASE WHEN '`+state+`' = 'retrying' THEN {now} END, {now} - {hour}, 'out of stock', 'not wanted'
		FROM {inbox} WHERE dispatch_id = $1`, p.in.id(id), []byte("sixteen bytes ok"), false, claimed)
	if claimed {
		p.in.run(`UPDATE {inbox} SET applied_at = NULL WHERE dispatch_id = $1`, p.in.id(id))
	}
	return id
}

func TestParkedOnEitherSideIsFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		event, message := p.parkEvent(100, "retrying"), p.parkMessage(4, "following", true)
		report := p.audit(nil)
		p.want(report, map[audit.Kind]int{audit.Parked: 2})
		for _, f := range report.Examples {
			anHourAgo(t, "when it was parked", f.Since)
			anHourAgo(t, "its creation", f.Created)
			f.Since, f.Created = time.Time{}, time.Time{}
			want := audit.Finding{
				Kind: audit.Parked, Database: "orders", DispatchID: event, Seq: 13,
				Topic: topic, State: "retrying", Attempts: 4, Why: "no route",
			}
			if f.Consumer != "" {
				want = audit.Finding{
					Kind: audit.Parked, Database: "stock", Consumer: name, DispatchID: message, Seq: 1,
					Topic: topic, State: "following", Attempts: 6, Why: "out of stock",
				}
			}
			if f != want {
				t.Errorf("found %+v, want %+v", f, want)
			}
		}
	})
}

func TestDeadTooOldAlteredAndDiscardedAreFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.parkEvent(100, "dead")
		p.parkEvent(101, "discarded")
		p.parkMessage(1, "dead", true)
		p.parkMessage(2, "too_old", false)
		p.in.run(`DELETE FROM {inbox} WHERE dispatch_id = $1`, p.in.id(p.ids[2])) // as if never claimed
		p.parkMessage(3, "altered", false)
		p.parkMessage(4, "discarded", true)
		want := map[audit.Kind]int{audit.Dead: 2, audit.TooOld: 1, audit.Altered: 1, audit.Discarded: 2}
		report := p.audit(nil)
		p.want(report, want)
		for _, f := range report.Examples {
			reason := f.Kind == audit.Discarded && f.Why == "not wanted"
			if !reason && (f.Why != "no route" && f.Why != "out of stock" || f.Kind == audit.Discarded) {
				t.Errorf("%s: why is %q", f.Kind, f.Why)
			}
		}
		accepted := p.audit(func(c *audit.Config) {
			c.Accept = []audit.Kind{audit.Dead, audit.TooOld, audit.Altered, audit.Discarded}
		})
		if !accepted.Clean || accepted.Findings[audit.Dead] != 2 || len(accepted.Examples) != 6 {
			t.Errorf("accepted: %+v", accepted)
		}
	})
}

func TestQueuedEventThatTheLogLacksIsFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.out.run(`INSERT INTO {outbox_queue} (shard, id) VALUES (9, 4711)`)
		if f := p.wantOne(p.audit(nil), audit.LogMissing); f.Seq != 4711 || f.State != "pending" || f.Database != "orders" {
			t.Errorf("found %+v", f)
		}
	})
}

func TestClaimThatLostItsParkedMessageIsFound(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.in.run(`UPDATE {inbox} SET applied_at = NULL WHERE dispatch_id = $1`, p.in.id(p.ids[5]))
		if f := p.wantOne(p.audit(nil), audit.NotApplied); f.State != "claimed" || f.DispatchID != p.ids[5] {
			t.Errorf("found %+v", f)
		}
	})
}

func TestWhyAMessageFailsIsSaid(t *testing.T) {
	each(t, func(t *testing.T, p *pairRig) {
		p.in.run(`DELETE FROM {inbox} WHERE dispatch_id = $1`, p.in.id(p.ids[5]))
		column := "changed_at"
		if p.in.words["hour"] == "3600000000" {
			column = "updated_at"
		}
		p.in.run(`INSERT INTO {inbox_attempts} (consumer, dispatch_id, attempts, last_error, `+column+`)
			SELECT id, $1, 3, 'boom', {now} FROM {inbox_consumers}`, p.in.id(p.ids[5]))
		if f := p.wantOne(p.audit(nil), audit.NotApplied); f.Attempts != 3 || f.Why != "boom" {
			t.Errorf("found %+v", f)
		}
	})
}
