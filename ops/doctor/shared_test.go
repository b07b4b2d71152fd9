package doctor_test

import (
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/store/inbox"
)

// twoConsumers makes two running consumers of one topic. The result gives one of them every other of
// the events first to last, of which the first is the newest.
func twoConsumers(r *rig) (claim func(consumer string, first, last int)) {
	r.Helper()
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size, passed_at) SELECT c, '14 days', now() FROM unnest(ARRAY['stock/reserve', 'mail/send']) c`)
	p := inbox.Process{Name: "host/1/ABCDEFGH", At: time.Now(), Host: "host", StartedAt: time.Now()}
	topics := []string{"order.placed"}
	if err := r.store.ReportHandlers(r.Context(), p, time.Hour, []inbox.HandlerReport{{Consumer: "stock/reserve", Topics: topics}, {Consumer: "mail/send", Topics: topics}}); err != nil {
		r.Fatal(err)
	}
	return func(consumer string, first, last int) {
		r.Helper()
		r.exec(`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at)
			SELECT (SELECT id FROM boxpair.inbox_consumers WHERE name = $1), overlay(md5('event ' || n) PLACING '5' FROM 13)::uuid,
				timestamptz '2026-01-31T12:10:00.25Z' - n * interval '1 s', now()
			FROM generate_series($2::int, $3::int, 2) n`, consumer, first, last)
	}
}

func TestTwoConsumersOfOneQueueAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	claim := twoConsumers(r)
	claim("stock/reserve", 1, 99) // older than mail/send
	claim("mail/send", 2, 60)
	want(t, r.examine(), doctor.SharedQueue, doctor.Loses, "shop: consumer mail/send", "of 59 recent messages of topic order.placed", "consumer stock/reserve lacks",
		"since about 2026-01-31T12:09:00Z: both", "boxpair replay --outbox URL --topic 'order.placed' --from 2026-01-31T12:09:00.25Z")
	claim("mail/send", 62, 1200) // more than are compared
	claim("stock/reserve", 101, 1201)
	want(t, r.examine(), doctor.SharedQueue, doctor.Loses, "since about 2026-01-31T11:53:21Z or earlier: both", "--from 2026-01-31T11:53:21.25Z")
	claim("mail/send", 1, 60) // each has a queue of its own, and mail/send is behind no more
	if found := r.examine(); slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Check == doctor.SharedQueue }) {
		t.Errorf("found:\n%s", lines(found))
	}
}
