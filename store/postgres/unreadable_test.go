package postgres_test

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Whoever may write events may write one that nobody can read.
func TestEventThatCannotBeReadKeepsNoOtherFromBeingRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	events := r.names.Table("outbox_events")
	r.exec("ALTER TABLE " + events + " DROP CONSTRAINT occurred_at_finite, DROP CONSTRAINT due_at_finite") // as for rows of before
	q := r.write(event("key", "1"), event("key", "2"), event("key", "3"), event("key", "4"))
	r.exec("UPDATE "+events+` SET headers = '{"a": 1}' WHERE id = $1`, q[0].Seq)
	r.exec("UPDATE "+events+" SET occurred_at = 'infinity' WHERE id = $1", q[1].Seq)
	r.exec("UPDATE "+events+" SET due_at = 'infinity' WHERE id = $1", q[2].Seq)
	want := []string{"headers are not a JSON object of strings", "occurred_at is infinity", "the stamp is infinity", ""}
	lease := r.acquire("relay", time.Hour)[q[0].Shard]
	queue := r.queue()
	for i, got := range queue {
		if got.Unreadable != want[i] || got.ID != q[i].ID || got.Key != "key" {
			t.Errorf("read %+v, want %q", got, want[i])
		}
	}
	for i := range queue {
		_, err := r.Park(r.ctx(), "relay", lease, []outbox.Failure{{Seq: q[i].Seq, Round: q[i].Round, Attempts: 1, Dead: true}})
		r.ok(err)
	}
	if list, err := r.ListParked(r.ctx(), outbox.Filter{}); err != nil || len(list) != len(queue) {
		t.Errorf("listed are %+v, %v", list, err)
	}
}

func TestEventWithoutAnEndOfItsTimeIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.pool.Exec(r.ctx(), "SELECT FROM "+r.names.Table("outbox_write")+"(producer => 'p', topic => 't', payload => '', source => 's', version => 1, occurred_at => 'infinity')")
	if err == nil {
		t.Error("an event that occurs at infinity was written")
	}
}
