package postgres_test

import (
	"strings"
	"testing"
)

func TestSequenceBelowTheEventsIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ok(r.CheckSequence(r.ctx())) // of an empty outbox
	for range 3 {
		r.write(event("key", "payload"))
	}
	r.ok(r.CheckSequence(r.ctx()))
	sequence := value[string](r, "SELECT pg_get_serial_sequence($1, 'id')", r.names.Table("outbox_events"))
	r.exec("ALTER SEQUENCE " + sequence + " RESTART")
	err := r.CheckSequence(r.ctx())
	if err == nil || !strings.Contains(err.Error(), "there are events up to 3") {
		t.Fatalf("error is %v", err)
	}
	_, statement, _ := strings.Cut(err.Error(), "run ")
	r.exec(statement)
	r.ok(r.CheckSequence(r.ctx()))
}
