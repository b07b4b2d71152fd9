package doctor_test

import (
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/store/inbox"
)

func TestTwoConsumersOfOneQueueAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size, passed_at) SELECT c, '14 days', now() FROM unnest(ARRAY['stock/reserve', 'mail/send']) c`)
	p := inbox.Process{Name: "host/1/ABCDEFGH", At: time.Now(), Host: "host", StartedAt: time.Now()}
	topics := []string{"order.placed"}
	if err := r.store.ReportHandlers(t.Context(), p, time.Minute, []inbox.HandlerReport{{Consumer: "stock/reserve", Topics: topics}, {Consumer: "mail/send", Topics: topics}}); err != nil {
		t.Fatal(err)
	}
	const claims = `INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at)
		SELECT (SELECT id FROM boxpair.inbox_consumers WHERE name = $1), overlay(md5('event ' || n) PLACING '5' FROM 13)::uuid, now() - n * interval '1 s', now()
		FROM generate_series($2::int, 60, 2) n`
	r.exec(claims, "stock/reserve", 1)
	r.exec(claims, "mail/send", 2)
	found := r.examine()
	want(t, found, doctor.SharedQueue, doctor.Loses, "shop: consumer mail/send", "of 58 recent messages of topic order.placed", "consumer stock/reserve lacks", "boxpair replay --outbox URL --topic 'order.placed'")
	r.exec(claims, "mail/send", 1) // each has a queue of its own, and mail/send is behind no more
	if found := r.examine(); slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Check == doctor.SharedQueue }) {
		t.Errorf("found:\n%s", lines(found))
	}
}
