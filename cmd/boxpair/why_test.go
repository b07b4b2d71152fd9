package main

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestCauseOfAKeyIsExplainedFirst, however many of its messages wait for one that is not among the latest.
// TestNameThatAMessageHasTooIsLookedForInOutboxes: a message that waits under another key does not stand for all
// events of its correlation ID, and those that are done do not hide one that waits.
func TestNameThatAMessageHasTooIsLookedForInOutboxes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.exec(`UPDATE boxpair.outbox_events SET correlation_id = 'request-7'`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, next_attempt_at)
			VALUES (1, '`+id(2).String()+`', decode(repeat('00', 16), 'hex'), 'order.placed', 'k', false, true, '{"correlation_id": "request-7"}', '', 'retrying', now())`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, reason, discarded_at)
			SELECT 1, gen_random_uuid(), decode(repeat('00', 16), 'hex'), 'order.placed', 'k', false, true, '{}', '', 'discarded', 'no', now() FROM generate_series(1, 12)`)
	r.says(exitOK, "show request-7", id(1).String(), id(2).String(), id(3).String())
	r.exec(`DELETE FROM boxpair.outbox_queue`)
	r.says(exitFound, "why k", id(2).String(), "retrying    at stock/reserve")
}

func TestCauseOfAKeyIsExplainedFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`)
	park := func(n int, state string) {
		r.exec(`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, next_attempt_at, last_error)
			VALUES (1, '` + id(n).String() + `', decode(repeat('00', 16), 'hex'), 'order.placed', 'customer-42', true, true, '{}', '', '` + state + `', 3,
				CASE WHEN '` + state + `' = 'retrying' THEN now() + interval '1 minute' END, 'no stock')`)
	}
	park(1, "retrying")
	for n := range mostNamed + 2 {
		park(2+n, "following")
	}
	out := r.says(exitFound, "why customer-42", "last error  no stock", "behind it   10 of its key: ")
	if !strings.HasPrefix(out, id(1).String()+"\n") || strings.Count(out, "heal\n") != 1 || !strings.Contains(out, "boxpair dead redrive "+id(1).String()+" --state retrying") {
		t.Errorf("the cause does not stand alone:\n%s", out)
	}
}

// TestWhatIsDoneOfANameIsCounted beside what waits; of a name of which nothing waits, the latest event is
// explained.
func TestWhatIsDoneOfANameIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.exec(`DELETE FROM boxpair.outbox_queue`,
		`INSERT INTO boxpair.outbox_receipts (relay, event_ids, delivered_at) SELECT 'relay-1', ARRAY[n], now() - (4 - n) * interval '1 minute' FROM generate_series(1, 3) n`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`)
	apply := func(n int) {
		r.exec(`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) VALUES (1, '` + id(n).String() + `', now(), now())`)
	}
	apply(1)
	apply(3)
	const rest = "\n\n2 more of the latest of k are done: boxpair show k\n"
	explained := func(n, status int) {
		t.Helper()
		if out := r.says(status, "why k", rest); !strings.HasPrefix(out, id(n).String()+"\n") || strings.Count(out, "event       order.placed") != 1 {
			t.Errorf("not event %d alone:\n%s", n, out)
		}
	}
	explained(2, exitFound) // the consumer has not got it
	apply(2)
	explained(3, exitOK)
	r.exec(`UPDATE boxpair.outbox_events e SET created_at = r.delivered_at - interval '9 minutes' FROM boxpair.outbox_receipts r WHERE e.id = ANY (r.event_ids)`)
	r.says(exitOK, "why k", ", to relay relay-1, 9m0s after it was written\n")
	if out := r.says(exitOK, "why -o json k"); strings.Count(out, `"topic":"order.placed"`) != 3 {
		t.Errorf("JSON has not all of them:\n%s", out)
	}
	if out := r.says(exitOK, "why "+id(1).String()+" "+id(2).String()); strings.Contains(out, "more of the latest") {
		t.Errorf("an event that was named is only counted:\n%s", out)
	}
}

// TestNameThatMayBeMeantIsSuggested if nothing has the name.
func TestNameThatMayBeMeantIsSuggested(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.exec(`UPDATE boxpair.outbox_events SET source = 'sale/s-28' || id, key = 'Customer-' || id`,
		`INSERT INTO boxpair.outbox_events (dispatch_id, digest, shard, topic, key, payload) SELECT gen_random_uuid(), decode(repeat('00', 16), 'hex'), 0, 'order.paid', 'pay', '' FROM generate_series(1, 1100)`)
	for text, want := range map[string]string{
		"s-282":      "; did you mean sale/s-282?\n",
		"customer-3": "; did you mean Customer-3?\n",
		"pey":        "; did you mean pay?\n",
		"pallet":     "source or correlation ID\n",
	} {
		if status, _, errs := call(t, nil, "why", text, "--outbox", r.url); status != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %q", text, status, errs)
		}
	}
}

// TestKeyThatIsAUUIDIsFound, as the ID of an order may be.
func TestKeyThatIsAUUIDIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	order := uuid.NewString()
	r.exec(`UPDATE boxpair.outbox_events SET key = '` + order + `'`)
	for _, name := range []string{order, strings.ReplaceAll(order, "-", "")[:8], order[:8]} {
		status, want := exitFound, "3 of its key"
		if name != order { // the beginning of a key is none
			status, want = exitFailed, "no given database knows"
		}
		got, out, errs := call(t, nil, "why", name, "--outbox", r.url)
		if got != status || name == order && strings.Count(out, "event       order.placed") != 3 || name != order && !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %s%s", name, got, out, errs)
		}
	}
	r.says(exitFound, "tree "+order, "of 3 events\n")
}

// TestRetriedMessageIsHealedByWhatItsErrorSays: a handler at work is not to be started, and a message is not
// to be discarded because a lock has held it up.
func TestRetriedMessageIsHealedByWhatItsErrorSays(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, next_attempt_at, last_error)
			VALUES (1, '`+id(1).String()+`', decode(repeat('00', 16), 'hex'), 'order.placed', 'k', true, true, '{}', '', 'retrying', 3, now() - interval '1 s', 'quantity is no number')`)
	r.reports()
	const start, blocked = "start the consumer", "does a session block it?"
	for _, c := range []struct{ next, text, heal, never string }{
		{"now() - interval '1 s'", "quantity is no number", "# its handler is at work: " + blocked, start},
		{"now() + interval '1 minute'", "timeout: context deadline exceeded", "# its handler ran out of time: " + blocked, "dead discard"},
		{"now() + interval '1 minute'", "quantity is no number", "boxpair dead edit ", blocked},
	} {
		r.exec(`UPDATE boxpair.inbox_parked SET next_attempt_at = ` + c.next + `, last_error = '` + c.text + `'`)
		if out := r.says(exitFound, "why "+id(1).String(), c.heal); strings.Contains(out, c.never) {
			t.Errorf("%q is in:\n%s", c.never, out)
		}
	}
}

// TestEditedMessageIsNotRedriven: its copy takes its place.
func TestEditedMessageIsNotRedriven(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, discarded_at, reason)
			VALUES (1, '`+id(1).String()+`', decode(repeat('00', 16), 'hex'), 'order.placed', 'k', true, true, '{}', '', 'discarded', 3, now(), 'edited as `+id(2).String()+`: it was three')`)
	if out := r.says(exitFound, "why "+id(1).String(), "discarded   at stock/reserve, after 3 attempts: edited as "+id(2).String()+": it was three\n",
		"# the edited copy takes its place\n    boxpair why "+id(2).String()+" --inbox "); strings.Contains(out, "redrive") {
		t.Error(out)
	}
}

// TestEditedEventIsNotRedriven, as no edited message is.
func TestEditedEventIsNotRedriven(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`DELETE FROM boxpair.outbox_queue`,
		`INSERT INTO boxpair.outbox_parked (id, shard, key, state, attempts, discarded_at, reason) SELECT id, shard, key, 'discarded', 3, now(), 'edited as `+id(2).String()+`: it was three' FROM boxpair.outbox_events`)
	if out := r.says(exitOK, "why "+id(1).String(), "# the edited copy takes its place\n    boxpair why "+id(2).String()+" --outbox "); strings.Contains(out, "redrive") {
		t.Error(out)
	}
}

func TestHealOfRightsNamesUserAndVirtualHost(t *testing.T) {
	t.Parallel()
	got := healAccess("Exception (403) Reason: \"ACCESS_REFUSED - write access to exchange 'order.paid' in vhost 'shop eu' refused for user 'relay'\"")
	want := []string{"rabbitmqctl list_permissions -p 'shop eu' ", "rabbitmqctl set_permissions -p 'shop eu' relay CONFIGURE WRITE READ   # replaces all three patterns; WRITE has to match exchange 'order.paid' too"}
	if !strings.HasPrefix(got[1], want[0]) || got[2] != want[1] {
		t.Errorf("%q", got)
	}
}
