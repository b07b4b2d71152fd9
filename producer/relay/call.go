package relay

import "time"

// call is a statement that the core has asked for, and what the core remembers with it until it is
// given back.
type call struct {
	statement
	issued time.Duration // when the core asked, which is before the statement began

	shards   []*shardState // that it is about
	entries  []*entry
	line     *keyLine
	versions []uint32 // of shards, when it was issued
	untold   []int64  // opRenew: shardState.untold of shards, when it was issued
	reload   bool     // opHeal: and then the blocked keys are loaded
	back     bool     // opFetch: a page of laps
	urgent   bool     // opFetch: and these are in a hurry
	share    int      // opFetch: how many rows of a shard a page of laps has
	news     bool     // opFetch: what was committed is looked for where that was
	above    []int    // opFetch: which of ranges are above the marks of shards
	looks    []int64  // opFetch: from where on it looks below the marks of shards
	known    []int64  // opFetch: shardState.known of shards, when it was issued
	old      int64    // opFetch: the lowest floor that looks need not reach down to
	sampled  int64    // opFetch: lateCommits.sampled, when it was issued

	wanted    [][]int64 // opFetch: rows of shards that are read by their Seqs
	lookLimit int       // opFetch: how many rows a look may bring
}

func ask(s statement) *call { return &call{statement: s} }

// numbersOf returns the numbers of shards, as statements want them.
func numbersOf(shards []*shardState) []int {
	numbers := make([]int, len(shards))
	for i, sh := range shards {
		numbers[i] = sh.no
	}
	return numbers
}
