package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/outbox"
)

// delivered writes records and marks them, and tells when they are past any retention.
func (r *rig) delivered(records ...outbox.Record) []outbox.Queued {
	r.Helper()
	queued := r.write(records...)
	leases := r.acquire("relay", time.Hour)
	marks := make([]outbox.Mark, len(queued))
	for i, q := range queued {
		marks[i] = markOf(leases[q.Shard], q)
	}
	lost, err := r.Mark(r.ctx(), "relay", marks)
	r.ok(err)
	if len(lost) != 0 {
		r.Fatalf("shards %v are lost", lost)
	}
	return queued
}

// past is a retention that was over before.
const past = -time.Minute

func TestRemovalDoesNotWaitLongForAWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	known := event("key", "payload")
	r.delivered(known)
	tx := r.begin()
	if _, err := r.Append(r.ctx(), tx, uuid.New(), []outbox.Record{known}); err != nil { // locks its row
		t.Fatal(err)
	}
	_, err := r.RemoveDelivered(r.ctx(), past, time.Time{}, 10)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "55P03" {
		t.Fatalf("removal gave %v, want the lock timeout", err)
	}
	r.ok(tx.Commit(r.ctx()))
	removed, err := r.RemoveDelivered(r.ctx(), past, time.Time{}, 10)
	if err != nil || removed.Events != 1 {
		t.Fatalf("removal gave %+v, %v", removed, err)
	}
}

// TestRedriveThatCommitsFirstKeepsItsEvent: the removal has chosen the discarded event, and waits for
// the row of an operator who redrives it.
func TestRedriveThatCommitsFirstKeepsItsEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	queued := r.write(event("key", "payload"))[0]
	leases := r.acquire("relay", time.Hour)
	_, err := r.Park(r.ctx(), "relay", leases[queued.Shard], []outbox.Failure{{Seq: queued.Seq, Round: queued.Round, Dead: true, Error: "refused"}})
	r.ok(err)
	ids, err := r.Discard(r.ctx(), outbox.Filter{IDs: []uuid.UUID{queued.ID}, States: []outbox.State{outbox.Dead}}, "a mistake")
	if err != nil || len(ids) != 1 {
		t.Fatalf("discard gave %v, %v", ids, err)
	}
	tx := r.begin()
	_, err = tx.Exec(r.ctx(), "UPDATE "+r.names.Table("outbox_parked")+` SET state = 'retrying', next_attempt_at = clock_timestamp(), reason = NULL, discarded_at = NULL`)
	r.ok(err)
	var got outbox.Removed
	removal := r.async(func() (err error) {
		got, err = r.RemoveDiscarded(r.ctx(), past, 10)
		return err
	})
	r.waitsForLock(1)
	r.ok(tx.Commit(r.ctx()))
	if err := r.result(removal); err != nil || got.Events != 0 {
		t.Fatalf("removal gave %+v, %v", got, err)
	}
	parked, err := r.ListParked(r.ctx(), outbox.Filter{Limit: 10})
	if err != nil || len(parked) != 1 || parked[0].State != outbox.Retrying {
		t.Errorf("%+v, %v", parked, err)
	}
}
