package main

import (
	"strings"
	"testing"
)

// A message that waits at the broker, or whose handler hangs, is in no inbox.
func TestConsumerThatHasNotGotAnEventIsMissed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.exec(`DELETE FROM boxpair.outbox_queue`, `INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay-1', '{1,2,3}')`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days'), ('mail/send', '14 days'), ('left/long-ago', '14 days')`,
		`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) SELECT c, d::uuid, now(), now()
			FROM unnest(ARRAY[1, 2]) c, unnest(ARRAY['`+id(1).String()+`', '`+id(2).String()+`']) d`,
		`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) VALUES (1, '`+id(3).String()+`', now(), now())`)
	r.says(exitOK, "why "+id(1).String()) // no earlier event tells who gets it
	if out := r.says(exitOK, "why "+id(2).String()); strings.Contains(out, "missing") {
		t.Error(out)
	}
	last := id(3).String()
	out := r.says(exitFound, "why "+last, "applied     by stock/reserve", "missing     at mail/send for ", "it has earlier events of the topic: the message is at the broker",
		"\n    # is mail/send down, or does a session block its handler?\n    boxpair doctor --management URL --inbox ")
	if strings.Contains(out, "long-ago") {
		t.Error(out)
	}
	if out := r.says(exitFound, "why -o json "+last); !strings.Contains(out, `"consumer":"mail/send","state":"missing"`) {
		t.Error(out)
	}
	r.says(exitFound, "tree "+last, "  mail/send  has not got it\n", "1 not done, of 1 events")
	r.says(exitOK, "show "+last) // facts only
}

func TestHealOfARouteFitsItsError(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(relayOwns, `INSERT INTO boxpair.outbox_routes (relay, topic, route, state, since, last_error) VALUES ('relay-1', 'order.placed', 'shop: order', 'refusing', now(), '')`)
	for text, want := range map[string]string{
		"Exception (403) Reason: ACCESS_REFUSED": "\n    rabbitmqctl list_permissions -p VHOST\n",
		"nack":                                   "\n    boxpair doctor --management URL --outbox ",
		"312 NO_ROUTE":                           "\n    boxpair declare --topic order.placed ",
	} {
		r.exec(`UPDATE boxpair.outbox_routes SET last_error = '` + text + `'`)
		if out := r.says(exitFound, "why "+id(1).String(), want); strings.Contains(out, "declare") != strings.Contains(text, "NO_ROUTE") {
			t.Errorf("%s: %s", text, out)
		}
	}
}
