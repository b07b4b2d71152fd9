package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

func TestSequenceBelowTheEventsIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ok(r.CheckSequence(r.ctx(), 0)) // of an empty outbox
	for range 3 {
		r.write(event("key", "payload"))
	}
	r.ok(r.CheckSequence(r.ctx(), 3))
	sequence := value[string](r, "SELECT pg_get_serial_sequence($1, 'id')", r.names.Table("outbox_events"))
	r.exec("ALTER SEQUENCE " + sequence + " RESTART")
	err := r.CheckSequence(r.ctx(), 0)
	var behind *outbox.SequenceError
	if !errors.As(err, &behind) || !strings.Contains(err.Error(), "there are events up to 3") {
		t.Fatalf("error is %v", err)
	}
	_, statement, _ := strings.Cut(err.Error(), "run ")
	r.exec(statement)
	r.ok(r.CheckSequence(r.ctx(), 0))
	if err := r.CheckSequence(r.ctx(), 4); err == nil { // it was read, and is gone
		t.Error("a sequence below an event that was read is not reported")
	}
	r.exec("ALTER SEQUENCE " + sequence + " RESTART WITH 5") // as good as setval
	r.ok(r.CheckSequence(r.ctx(), 4))
}

// Whoever was granted the privileges of an earlier version cannot look, and works.
func TestSequenceIsSeenByTheRolesThatLookAtIt(t *testing.T) {
	t.Parallel()
	p := newParts(t, newPool(t, nil))
	cfg := postgres.Config{Schema: testenv.Name(t)}
	p.migrated(t, cfg)
	for role, pool := range map[string]*postgres.Store{
		p.roles.Relay: storeOf(t, p.relay, cfg), p.roles.Operator: storeOf(t, p.operator, cfg), p.roles.Monitor: storeOf(t, p.monitor, cfg),
	} {
		if err := pool.CheckSequence(t.Context(), 1); err == nil {
			t.Errorf("%s does not see the sequence", role)
		}
		sequence := migrations.Quote(cfg.Schema) + ".outbox_events_id_seq"
		if _, err := p.owner.Exec(t.Context(), "REVOKE ALL ON SEQUENCE "+sequence+" FROM "+migrations.Quote(role)); err != nil {
			t.Fatal(err)
		}
		if err := pool.CheckSequence(t.Context(), 1); err != nil {
			t.Errorf("%s without the privilege: %v", role, err)
		}
	}
}
