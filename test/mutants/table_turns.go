package mutants

// turns are mutants that have events starve beside paused routes, beside routes that work now and
// again, and in queues that are read again.
var turns = []Mutant{
	{
		Name: "failed-route-keeps-room-of-due-events", Guarantee: "G5",
		Broken: "The due events of a route that fails while they are sent keep all due events of others from being read.",
		File:   "producer/relay/internal/core/due.go",
		Old: `	if du.full() {
		du.routes.evictSurplus() // of a route that has stalled since`,
		New: `	if du.full() {
		du.routes.now = du.now`,
		Test: Test{"producer/relay/internal/core", "TestDueEventsOfARouteThatFailsLeaveRoomToOthers"},
	},
	{
		Name: "failed-undefer-at-once", Guarantee: "G5",
		Broken: "A statement that always fails has all queues read from their beginnings without end.",
		File:   "producer/relay/internal/core/deferred.go",
		Old:    `df.next = df.now + min(50*time.Millisecond<<min(df.fails, 20), deferredSlowMax)`,
		New:    `df.next = df.now`,
		Test:   Test{"producer/relay/internal/core", "TestStatementThatAlwaysFailsLeavesTimeForNewEvents"},
	},
	{
		Name: "failed-undefer-is-woken", Guarantee: "G5",
		Broken: "A wake-up ends the pause after a statement that has all queues read from their beginnings.",
		File:   "producer/relay/internal/core/deferred.go",
		Old:    `if df.woken && df.fails == 0 {`,
		New:    `if df.woken {`,
		Test:   Test{"producer/relay/internal/core", "TestStatementThatAlwaysFailsLeavesTimeForNewEvents"},
	},
	{
		Name: "rewind-ends-each-lap", Guarantee: "G5",
		Broken: "Late commits let no lap through skipped events get far.",
		File:   "producer/relay/internal/core/shard.go",
		Old:    `if sh.back.at > sh.low { // the lap`,
		New:    `if sh.low >= 0 { // the lap`,
		Test:   Test{"producer/relay/internal/core", "TestLapGoesOnBelowAReadPositionThatIsSetBack"},
	},
	{
		Name: "only-urgent-laps", Guarantee: "G5",
		Broken: "Laps of a route that works again once and again leave none to other shards.",
		File:   "producer/relay/internal/core/laps.go",
		Old:    `(len(calm) == 0 || lp.now < lp.calmAt+lapAtLeast)`,
		New:    `(len(calm) == 0 || lp.now >= lp.calmAt)`,
		Test:   Test{"producer/relay/internal/core", "TestUrgentLapsLeavePagesToOthers"},
	},
	{
		Name: "due-pass-without-end", Guarantee: "G5",
		Broken: "Due events behind those of a paused route are not read while another route works again once and again.",
		File:   "producer/relay/internal/core/due.go",
		Old: `	if du.restarted {
`,
		New: `	if du.restarted && du.again {
`,
		Test: Test{"producer/relay/internal/core", "TestPassOverDueEventsEndsBesideARouteThatFlaps"},
	},
	{
		Name: "paused-for-nothing", Guarantee: "G5",
		Broken: "A route stays paused for skipped events that have left the queue.",
		File:   "producer/relay/internal/core/laps.go",
		Old: `			r.skippedIn &^= 1 << sh.no
		}
		lp.rates`,
		New: `			_ = r
		}
		lp.rates`,
		Test: Test{"producer/relay/internal/core", "TestRouteIsNotPausedForEventsThatDiedBeforeTheyWereReadAgain"},
	},
	{
		Name: "turns-in-each-urgent-lap", Guarantee: "G5",
		Broken: "Events in the shard of a route that works again once and again have the turns of all others.",
		File:   "producer/relay/internal/core/laps.go",
		Old:    `b.turns = lp.now >= b.notBefore`,
		New:    `b.turns = true`,
		Test:   Test{"producer/relay/internal/core", "TestTurnsInAShardBesideOneWhoseLapsAreAlwaysUrgent"},
	},
	{
		Name: "free-places-without-turns", Guarantee: "G5",
		Broken: "Places of a paused route that become free always go to its first events.",
		File:   "producer/relay/internal/core/stall.go",
		Old:    `if !full && (!lap || !rs.keepsFew(r)) {`,
		New:    `if !full {`,
		Test:   Test{"producer/relay/internal/core", "TestTurnsBesideAChangingNumberOfPlaces"},
	},
	{
		Name: "turn-lost-with-a-place", Guarantee: "G5",
		Broken: "An event that makes room before it was probed has lost its turn.",
		File:   "producer/relay/internal/core/stall.go",
		Old:    `e.turn && e.probe == 0`,
		New:    `e.turn && e.probe < 0`,
		Test:   Test{"producer/relay/internal/core", "TestTurnsBesideAChangingNumberOfPlaces"},
	},
	{
		Name: "free-places-without-due-turns", Guarantee: "G5",
		Broken: "Places of a paused route that become free always go to its first parked events.",
		File:   "producer/relay/internal/core/stall.go",
		Old: `	if !rs.keepsFew(r) {
		return true`,
		New: `	if !rs.hasEnough(r) {
		return true`,
		Test: Test{"producer/relay/internal/core", "TestTurnsBesideAChangingNumberOfPlaces"},
	},
	{
		Name: "short-lap-ends-the-turns", Guarantee: "G5",
		Broken: "A lap that a rewind cuts short has the turns begin with the first event again.",
		File:   "producer/relay/internal/core/laps.go",
		Old:    `whole := sh.low >= t.end || !sh.more`,
		New:    `whole := sh.low >= 0 || !sh.more`,
		Test:   Test{"producer/relay/internal/core", "TestTurnsOutlastAQueueThatIsReadAgain"},
	},
	{
		Name: "no-turns-in-urgent-laps", Guarantee: "G5",
		Broken: "Events of a paused route have no turns in a shard whose laps are urgent all the time.",
		File:   "producer/relay/internal/core/laps.go",
		Old:    `b.turns = lp.now >= b.notBefore`,
		New:    `b.turns = lp.now >= b.notBefore && b.urgent == 0`,
		Test:   Test{"producer/relay/internal/core", "TestTurnsInAShardWhoseLapsAreAlwaysUrgent"},
	},
	{
		Name: "no-pass-for-the-second-route", Guarantee: "G5",
		Broken: "The due events of a route that works again during a pass wait for a slow one.",
		File:   "producer/relay/internal/core/due.go",
		Old: `		du.slow = 0
		du.soon(du.now)
	}
	du.restarted`,
		New: `		du.slow = 0
	}
	du.restarted`,
		Test: Test{"producer/relay/internal/core", "TestAnotherPassFollowsForARouteThatWorksAgainMeanwhile"},
	},
	{
		Name: "turns-end-with-the-queue-of-before", Guarantee: "G5",
		Broken: "Turns do not begin anew in a queue that has become shorter.",
		File:   "producer/relay/internal/core/laps.go",
		Old:    `whole := sh.low >= t.end || !sh.more`,
		New:    `whole := sh.low >= t.end`,
		Test:   Test{"producer/relay/internal/core", "TestTurnsBeginAgainInAQueueThatIsShorter"},
	},
	{
		Name: "oldest-events-have-the-places", Guarantee: "G5",
		Broken: "Of events in several shards, the oldest always have the places that become free.",
		File:   "producer/relay/internal/core/laps.go",
		Old:    `return positions[a.Shard] - positions[b.Shard]`,
		New:    `return int(a.Seq - b.Seq)`,
		Test:   Test{"producer/relay/internal/core", "TestTurnsBesideAChangingNumberOfPlaces"},
	},
	{
		Name: "youngest-events-make-room", Guarantee: "G5",
		Broken: "The youngest of the events that were not probed yet always make room.",
		File:   "producer/relay/internal/core/stall.go",
		Old: `		return cmp.Compare(min(a.probe, 1), min(b.probe, 1))
`,
		New: `		return cmp.Or(cmp.Compare(min(a.probe, 1), min(b.probe, 1)), cmp.Compare(a.Seq, b.Seq))
`,
		Test: Test{"producer/relay/internal/core", "TestTurnsBesideAChangingNumberOfPlaces"},
	},
	{
		Name: "urgent-laps-wait-for-others", Guarantee: "G5",
		Broken: "Laps of a route that works again wait for those that only bring events to be probed.",
		File:   "producer/relay/internal/core/laps.go",
		Old: `	lp.calmAt = lp.now
`,
		New:  ``,
		Test: Test{"producer/relay/internal/core", "TestUrgentLapsGoFirst"},
	},
}
