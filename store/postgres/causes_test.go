package postgres_test

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// TestCausesNameTheTopicOfEventsThatAnEarlierVersionHasParked: their parked rows do not have it.
func TestCausesNameTheTopicOfEventsThatAnEarlierVersionHasParked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	queued, leases := r.write(event("a", "1"), event("b", "2"), event("c", "3")), r.acquire("relay", time.Hour)
	for _, q := range queued {
		_, err := r.Park(r.ctx(), "relay", leases[q.Shard], []outbox.Failure{
			{Seq: q.Seq, Round: q.Round, Attempts: 10, Dead: true, Error: "no queue"},
		})
		r.ok(err)
	}
	count := func(f outbox.Filter) int64 {
		causes, err := r.Causes(r.ctx(), f)
		if err != nil || len(causes) != 1 || causes[0].Topic != "topic" || causes[0].Error != "no queue" {
			t.Fatalf("causes are %+v, %v", causes, err)
		}
		return int64(causes[0].Count)
	}
	for _, earlier := range []string{"false", "id = (SELECT min(id) FROM " + r.names.Table("outbox_parked") + ")", "true"} {
		r.exec("UPDATE " + r.names.Table("outbox_parked") + " SET topic = NULL WHERE " + earlier)
		if n, ofTopic := count(outbox.Filter{}), count(outbox.Filter{Topic: "topic"}); n != 3 || ofTopic != 3 {
			t.Errorf("topic is NULL where %s: %d events, %d of the topic, want 3", earlier, n, ofTopic)
		}
	}
}
