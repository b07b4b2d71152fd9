package core

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// Call is a statement that the core has asked for, and what the core remembers with it until it is
// given back.
type Call struct {
	statement.Statement
	issued time.Duration // when the core asked, which is before the statement began

	shards   []*shardState // that it is about
	entries  []*Entry
	line     *keyLine
	versions []uint32 // of shards, when it was issued
	untold   []int64  // Renew: shardState.untold of shards, when it was issued
	reload   bool     // Heal: and then the blocked keys are loaded
	back     bool     // Fetch: a page of laps
	urgent   bool     // Fetch: and these are in a hurry
	share    int      // Fetch: how many rows of a shard a page of laps has
	news     bool     // Fetch: what was committed is looked for where that was
	above    []int    // Fetch: which of ranges are above the marks of shards
	looks    []int64  // Fetch: from where on it looks below the marks of shards
	known    []int64  // Fetch: shardState.known of shards, when it was issued
	old      int64    // Fetch: the lowest floor that looks need not reach down to
	sampled  int64    // Fetch: lateCommits.sampled, when it was issued

	wanted    [][]int64 // Fetch: rows of shards that are read by their Seqs
	lookLimit int       // Fetch: how many rows a look may bring
}

func ask(s statement.Statement) *Call { return &Call{Statement: s} }

// numbersOf returns the numbers of shards, as statements want them.
func numbersOf(shards []*shardState) []int {
	numbers := make([]int, len(shards))
	for i, sh := range shards {
		numbers[i] = sh.no
	}
	return numbers
}
