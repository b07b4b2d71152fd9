package relay

import (
	"errors"
	"log/slog"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// numbering is what the core knows of the sequence that numbers events. Marks and floors take it
// for granted that numbers ascend. While they begin anew, writers may commit events anywhere above
// the sequence, far below the marks: looks reach down to there, so that these events are sent soon
// and in the order of each other.
type numbering struct {
	read   int64 // highest Seq that was read since the shards were read from the beginning
	anew   bool
	last   int64         // what the sequence had given out at the last heartbeat, while anew
	noteAt time.Duration // not before it is said again
}

// noteSequence is how often it is said that the sequence begins anew.
const noteSequence = time.Minute

// sawSeq takes note of a number that was read above the marks. A writer that comes next has higher
// ones, or ones above the sequence if that begins anew.
func (c *relayCore) sawSeq(seq int64) {
	n := &c.numbers
	n.read = max(n.read, seq)
	c.late.seen = n.seen()
}

func (n *numbering) seen() int64 {
	if n.anew {
		return min(n.read, n.last)
	}
	return n.read
}

// numbered takes over what the database said of its sequence. If the shards were read from the
// beginning since, the question was about events that may be gone.
func (c *relayCore) numbered(cl *call) {
	n := &c.numbers
	if cl.read > n.read {
		return
	}
	var behind *outbox.SequenceError
	if !errors.As(cl.sequence, &behind) {
		if n.anew {
			n.anew, n.noteAt = false, 0
			c.late.seen = n.seen()
			c.note(slog.LevelInfo, "sequence of event numbers is above all events again")
		}
		return
	}
	begins := !n.anew || behind.Last < n.last
	n.anew, n.last = true, behind.Last
	if c.now >= n.noteAt {
		n.noteAt = c.now + noteSequence
		c.note(slog.LevelError, "sequence of event numbers has begun anew: new events overtake older ones of their keys",
			slog.Any("error", behind))
	}
	if !begins {
		c.late.seen = n.seen()
		return
	}
	// Events may be anywhere below the marks already.
	n.read, c.late = 0, lateCommits{}
	for _, sh := range c.shards {
		if sh != nil {
			sh.rewind(0)
		}
	}
}
