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
