package core

import (
	"errors"
	"log/slog"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// numbering watches the sequence that numbers events. Marks and floors rely on ascending numbers.
// When the numbers begin anew, writers may commit events anywhere above the sequence, far below the
// read positions. Late ranges then reach down to the sequence, so these events are sent soon, and
// in order among themselves.
type numbering struct {
	*Machine

	read   int64 // highest Seq read since the shards were read from the beginning
	anew   bool
	last   int64         // last number of the sequence at the last heartbeat, while anew
	noteAt time.Duration // no note before this time
}

// noteSequence is the time between two log records about a sequence that began anew.
const noteSequence = time.Minute

// saw notes a number that was read above the read positions. The next writer has higher numbers,
// or, if the sequence begins anew, numbers above the sequence.
func (nb *numbering) saw(seq int64) {
	nb.read = max(nb.read, seq)
	nb.late.seen = nb.seen()
}

func (nb *numbering) seen() int64 {
	if nb.anew {
		return min(nb.read, nb.last)
	}
	return nb.read
}

// checked takes over the state of the sequence. An answer to a question from before the shards were
// read from the beginning is ignored: the question was about events that may be gone.
func (nb *numbering) checked(s *statement.Heartbeat) {
	if s.Read > nb.read {
		return
	}
	var behind *outbox.SequenceError
	if !errors.As(s.Sequence, &behind) {
		if nb.anew {
			nb.anew, nb.noteAt = false, 0
			nb.late.seen = nb.seen()
			nb.note(slog.LevelInfo, "sequence of event numbers is above all events again")
		}
		return
	}
	begins := !nb.anew || behind.Last < nb.last
	nb.anew, nb.last = true, behind.Last
	if nb.now >= nb.noteAt {
		nb.noteAt = nb.now + noteSequence
		nb.note(slog.LevelError, "sequence of event numbers has begun anew: new events overtake older ones of their keys",
			slog.Any("error", behind))
	}
	if !begins {
		nb.late.seen = nb.seen()
		return
	}
	// Events may already be anywhere below the read positions.
	nb.read = 0
	nb.late.reset()
	for _, sh := range nb.shards {
		if sh != nil {
			sh.rewind(0)
		}
	}
}
