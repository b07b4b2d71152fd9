package mutants

// handingOver is about what an owner of a shard leaves to the next.
var handingOver = []Mutant{
	{
		Name: "tail-above-what-is-to-be-sent", Guarantee: "G4",
		Broken: "The next owner of a shard reads on above events that were about to be sent, and a later event of a key goes first.",
		File:   "producer/relay/internal/core/low_keeper.go",
		Old:    `			if !e.waits() {`,
		New:    `			if !e.waits() && seq == 0 {`,
		Test:   Test{"producer/relay/internal/core", "TestBottomIsBelowWhatWaits"},
	},
	{
		Name: "tail-above-writers", Guarantee: "G4",
		Broken: "The next owner of a shard reads on above transactions that have not committed.",
		File:   "producer/relay/internal/core/low_keeper.go",
		Old:    `		tail = max(sh.sealed, lk.unwritten(sh))`,
		New:    `		tail = max(sh.sealed, sh.low)`,
		Test:   Test{"producer/relay/internal/core", "TestBottomIsBelowWhatWaits"},
	},
	{
		Name: "tail-above-rows-that-are-wanted", Guarantee: "G4",
		Broken: "The next owner of a shard reads on above deferred events that were just queued.",
		File:   "producer/relay/internal/core/low_keeper.go",
		Old: `	for _, seq := range lk.wantedOf(sh) {
		above(seq)
	}
	return tail`,
		New:  `	return tail`,
		Test: Test{"producer/relay/internal/core", "TestSimulate"},
	},
	{
		Name: "passed-keys-without-memory", Guarantee: "G4",
		Broken: "Keys of events that wait in memory for a stalled route are not handed over: their later events go first.",
		File:   "producer/relay/internal/core/shard.go",
		Old:    `		if l.waits() {`,
		New:    `		if l.waits() && sh.yielding {`,
		Test:   Test{"producer/relay/internal/core", "TestEventsOfAKeyFollowThoseThatAnEarlierOwnerHasLeft"},
	},
	{
		Name: "yielded-keys-not-passed", Guarantee: "G4",
		Broken: "Keys of events that waited in memory are not handed over with a shard that is given back: their later events go first.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `	ls.lows.skipWaiting(sh)`,
		New:    `	_ = ls.lows.skipWaiting`,
		Test:   Test{"producer/relay/internal/core", "TestWhatWaitsInTheMemoryOfAShardThatIsGivenBackIsHandedOver"},
	},
	{
		Name: "handed-keys-not-looked-at", Guarantee: "G4",
		Broken: "New events of a key go before the events that an earlier owner has left.",
		File:   "producer/relay/internal/core/laps.go",
		Old:    `	return ok || b.inherited.Has(hash)`,
		New:    `	return ok`,
		Test:   Test{"producer/relay/internal/core", "TestEventsOfAKeyFollowThoseThatAnEarlierOwnerHasLeft"},
	},
	{
		Name: "handed-keys-without-a-lap", Guarantee: "G1",
		Broken: "Events that an earlier owner has left are read at the next sweep, minutes later.",
		File:   "producer/relay/internal/core/laps.go",
		Old:    ` || b.inherited != nil`,
		New:    ``,
		Test:   Test{"producer/relay/internal/core", "TestEventsOfAKeyFollowThoseThatAnEarlierOwnerHasLeft"},
	},
	{
		Name: "tail-not-lowered-by-deferred-events", Guarantee: "G2",
		Broken: "A deferred event that is queued stands below the tail that is kept, and the next owner does not read it for minutes.",
		File:   "store/postgres/deferred.go",
		Old:    `, tail = least(s.tail, m.first - 1)`,
		New:    ``,
		Test:   Test{"store/postgres", "TestProducerContract"},
	},
	{
		Name: "tail-not-lowered-by-a-rewind", Guarantee: "G2",
		Broken: "An event that is queued again stands below the tail that is kept, and the next owner does not read it for minutes.",
		File:   "store/postgres/leases.go",
		Old:    `, tail = least(tail, rewind_to - 1)`,
		New:    ``,
		Test:   Test{"store/postgres", "TestProducerContract"},
	},
	{
		Name: "looks-reach-below-the-tail", Guarantee: "G5",
		Broken: "While a writer from before a relay's takeover still works, each poll reads the backlog of a dead route.",
		File:   "producer/relay/internal/core/late_commits.go",
		Old:    `from = max(min(floor, sh.known), sh.sealed)`,
		New:    `from = min(floor, sh.known)`,
		Test:   Test{"producer/relay/internal/core", "TestWriterThatWasThereBeforeTheNextOwnerHasTheBacklogReadOnce"},
	},
	{
		Name: "writer-that-ends-has-the-backlog-read", Guarantee: "G5",
		Broken: "The end of a writer from before a relay's takeover makes the relay read the backlog of a dead route again.",
		File:   "producer/relay/internal/core/late_commits.go",
		Old:    `sh.known = min(sh.known, max(w.floor, sh.sealed))`,
		New:    `sh.known = min(sh.known, w.floor)`,
		Test:   Test{"producer/relay/internal/core", "TestWriterThatWasThereBeforeTheNextOwnerHasTheBacklogReadOnce"},
	},
}
