package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/store/outbox"
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
		"\n    # is mail/send down, or does a session block its handler?\n    boxpair doctor --management URL --vhost VHOST --outbox ", " --inbox ")
	if strings.Contains(out, "long-ago") {
		t.Error(out)
	}
	if out := r.says(exitFound, "why -o json "+last); !strings.Contains(out, `"consumer":"mail/send","state":"missing"`) {
		t.Error(out)
	}
	r.says(exitFound, "tree "+last, "  mail/send  has not got it\n", "1 not done, of 1 events")
	r.says(exitOK, "show "+last) // facts only
}

// A consumer that has later events and not this one will not get it by waiting.
func TestConsumerThatHasLaterEventsHasLostOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	ids := make([]string, 4)
	for i := range ids {
		ids[i] = id(i).String()
	}
	r.exec(`DELETE FROM boxpair.outbox_queue`,
		`INSERT INTO boxpair.outbox_receipts (relay, event_ids, delivered_at) VALUES ('relay-1', '{1}', now() - interval '3 minutes'), ('relay-1', '{2}', now() - interval '2 minutes'),
			('relay-1', '{3}', now() - interval '1 minute')`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days'), ('mail/send', '14 days')`,
		`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) VALUES (1, '`+ids[1]+`', now(), now()), (2, '`+ids[2]+`', now(), now()), (1, '`+ids[3]+`', now(), now())`)
	r.says(exitFound, "why "+ids[2], "applied     by mail/send", "missing     at stock/reserve for 2m: it has earlier and later events of the topic: the message was lost behind the broker",
		"do stock/reserve and mail/send read one queue? Each needs its own", "boxpair doctor --management URL --vhost VHOST --outbox ", " --inbox ")
	r.exec(`UPDATE boxpair.outbox_receipts SET delivered_at = (SELECT max(delivered_at) FROM boxpair.outbox_receipts)`)
	r.says(exitFound, "why "+ids[2], "it has earlier events of the topic: the message is at the broker") // handlers that run at once overtake each other
}

// TestEventTakenByTheConsumerOfAnotherDatabaseIsExplained, in whatever order the databases are given.
func TestEventTakenByTheConsumerOfAnotherDatabaseIsExplained(t *testing.T) {
	t.Parallel()
	stock, mail := newRig(t, 3), newRig(t, 0)
	consumer := `INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('`
	applied := `INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) VALUES (1, '`
	stock.exec(`DELETE FROM boxpair.outbox_queue`,
		`INSERT INTO boxpair.outbox_receipts (relay, event_ids, delivered_at) SELECT 'relay-1', ARRAY[n], now() - (4 - n) * interval '1 minute' FROM generate_series(1, 3) n`,
		consumer+`stock/reserve', '14 days')`, applied+id(1).String()+`', now(), now())`, applied+id(3).String()+`', now(), now())`)
	mail.exec(consumer+`mail/send', '14 days')`, applied+id(2).String()+`', now(), now())`)
	for _, inboxes := range [][]string{{stock.url, mail.url}, {mail.url, stock.url}} {
		status, out, errs := call(t, nil, "why", id(2).String(), "--outbox", stock.url, "--inbox", inboxes[0], "--inbox", inboxes[1])
		if status != exitFound || !strings.Contains(out, "do stock/reserve and mail/send read one queue?") {
			t.Errorf("%d, %s%s", status, out, errs)
		}
	}
	stock.says(exitFound, "why "+id(2).String(), "# does another service read its queue, or does a session block its handler?")
}

func TestEventThatARelayDoesNotRecordIsExplained(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(relayOwns, `UPDATE boxpair.outbox_events SET created_at = created_at - interval '1 minute'`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) VALUES (1, '`+id(1).String()+`', now(), now())`)
	r.says(exitFound, "why "+id(1).String(), "applied     by stock/reserve", "sent        a consumer has it, so the broker took it: no relay has recorded that yet",
		"\n    # does a session block the relay, or a transaction its reading?\n    boxpair doctor --outbox ")
}

func TestHealOfAPauseNamesItsReason(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.says(exitOK, "pause --topic order.placed -m wrong-prices --as kim")
	r.says(exitFound, "why "+id(1).String(), "\n    # paused by kim: wrong-prices\n    boxpair resume --topic order.placed --outbox ")
}

func TestHealOfARouteFitsItsError(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(relayOwns, `INSERT INTO boxpair.outbox_routes (relay, topic, route, state, since, last_error) VALUES ('relay-1', 'order.placed', 'shop: order', 'refusing', now(), '')`)
	for text, want := range map[string]string{
		"Exception (403) Reason: ACCESS_REFUSED": "\n    rabbitmqctl list_permissions -p VHOST   # the patterns in force\n",
		"nack":                                   "\n    boxpair doctor --management URL --vhost VHOST --outbox ",
		"312 NO_ROUTE":                           "\n    boxpair declare --topic order.placed ",
	} {
		r.exec(`UPDATE boxpair.outbox_routes SET last_error = '` + text + `'`)
		if out := r.says(exitFound, "why "+id(1).String(), want); strings.Contains(out, "declare") != strings.Contains(text, "NO_ROUTE") {
			t.Errorf("%s: %s", text, out)
		}
	}
}

// searched answers searches with what they find within so many events, and counts them.
type searched struct {
	outbox.Searcher

	within map[int]outbox.Results // by outbox.Query.Scan
	scans  []int
}

func (s *searched) Search(_ context.Context, q outbox.Query) (outbox.Results, error) {
	s.scans = append(s.scans, q.Scan)
	return s.within[q.Scan], nil
}

// TestNeighboursAreSearchedNearbyFirst: a search through all that may be looked at takes longer.
func TestNeighboursAreSearchedNearbyFirst(t *testing.T) {
	t.Parallel()
	few, many := make([]outbox.Found, mostNeighbours-1), make([]outbox.Found, mostNeighbours)
	for name, c := range map[string]struct {
		near  outbox.Results
		found int
		scans []int
	}{
		"enough nearby":             {outbox.Results{Events: many, Before: 7}, mostNeighbours, []int{nearby}},
		"few nearby":                {outbox.Results{Events: few, Before: 7}, mostNeighbours, []int{nearby, 0}},
		"few, and the beginning is": {outbox.Results{Events: few}, mostNeighbours - 1, []int{nearby}},
	} {
		events := &searched{within: map[int]outbox.Results{nearby: c.near, 0: {Events: many, Before: 5}}}
		found, err := deliveredBefore(t.Context(), &operators{events: events}, "order.placed", 9)
		if err != nil || len(found) != c.found || !slices.Equal(events.scans, c.scans) {
			t.Errorf("%s: found %d events, %v, by %v", name, len(found), err, events.scans)
		}
	}
}
