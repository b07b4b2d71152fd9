package postgres

import (
	"testing"

	"github.com/boxpair/boxpair/store/outbox"
)

// TestTopicsOfALongBacklogAreCountedCheaply counts the topics of a backlog beside dead events, which
// the planner does not know.
func TestTopicsOfALongBacklogAreCountedCheaply(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	const n, dead, limit = 64_000, 15_000, outbox.DefaultCountLimit
	p.run("ANALYZE")
	p.fill(n)
	p.run(`WITH q AS (DELETE FROM boxpair.outbox_queue WHERE id <= $1 RETURNING shard, id)
		INSERT INTO boxpair.outbox_parked (id, shard, key, topic, state) SELECT id, shard, 'key', 'topic', 'dead' FROM q`, dead)
	c, err := p.CountTopics(t.Context(), 0)
	if err != nil || !c.WaitingCapped || !c.DeadCapped || len(c.Topics) != 1 || c.Topics[0].Waiting < limit*9/10 || c.Topics[0].Waiting > limit || c.Topics[0].Dead <= limit {
		t.Errorf("%+v, %v", c, err)
	}
	p.expectIndexes("count of topics", p.explain(countTopics, limit), 6*limit)
	p.run(`DELETE FROM boxpair.outbox_queue WHERE id > $1`, dead+limit)
	c, err = p.CountTopics(t.Context(), 0)
	if err != nil || c.WaitingCapped || c.Topics[0].Waiting != limit {
		t.Errorf("%+v, %v", c, err)
	}
	// Entries of deleted rows are read as well, while another database's session has an old snapshot.
	p.expectIndexes("count of the topics of a short backlog", p.explain(countTopics, limit), 10*limit)
}
