package mutants

// ordering is about the order of a key's events at the relay.
var ordering = []Mutant{
	{
		Name: "no-waves", Guarantee: "G4",
		Broken: "The next event of a key is sent before its predecessor is confirmed.",
		File:   "producer/relay_take.go",
		Old: `		e.next.state = entryWaiting
	}
	c.promote(l)`,
		New: `		e.next.state = entryWaiting
	}
	c.place(e)`,
		Test: Test{"producer", "TestEventsOfOneKeyAreSentOneByOneInOrder"},
	},
	{
		Name: "blocked-key-not-respected", Guarantee: "G4",
		Broken: "A fresh event of a key is sent although earlier ones of it are parked.",
		File:   "producer/relay_take.go",
		Old: `		sh.index[e.Seq] = e
		c.follow(e)`,
		New: `		sh.index[e.Seq] = e
		c.count(e)
		l.insert(e)
		c.place(e)`,
		Test: Test{"producer", "TestAFreshEventWaitsUntilTheLastParkedOneOfItsKeyHasGone"},
	},
	{
		Name: "followers-stay", Guarantee: "G4",
		Broken: "The later events of a parked one stay in the queue, and are sent before it.",
		File:   "producer/relay_lane.go",
		Old:    `		if !e.state.underway() {`,
		New:    `		if e.state == entryConfirmed {`,
		Test:   Test{"producer", "TestAFailedKeyIsSentFromItsParkedEventsInOrder"},
	},
	{
		Name: "parked-before-the-marks", Guarantee: "G4",
		Broken: "A failed event is parked before its delivered predecessors are marked; a crash then sends them behind it.",
		File:   "producer/relay_lane.go",
		Old:    `	if l.marking == 0 {`,
		New:    `	if l.marking >= 0 {`,
		Test:   Test{"producer", "TestAFailureIsParkedAfterTheMarksOfItsPredecessors"},
	},
	{
		Name: "hole-forgotten", Guarantee: "G4",
		Broken: "Reading goes on past the events of a hot key that found no room, without remembering them.",
		File:   "producer/relay_take.go",
		Old:    `	case l != nil && l.hole != 0 && row.Seq >= l.hole:`,
		New:    `	case l != nil && l.hole < 0 && row.Seq >= l.hole:`,
		Test:   Test{"producer", "TestAHotKeyDoesNotStarveItsNeighboursAndKeepsItsOrder"},
	},
	{
		Name: "doubtful-park-trusted", Guarantee: "G2",
		Broken: "A repeated statement that parks an event is taken for the first one; if an operator has settled the event since, its key waits for ever.",
		File:   "producer/relay_lane.go",
		Old:    `				case e.doubtful:`,
		New:    `				case false:`,
		Test:   Test{"producer", "TestARepeatedParkDoesNotHoldUpTheKeyOfWhatWasDiscarded"},
	},
	{
		Name: "lost-retry-repeated", Guarantee: "G5",
		Broken: "The statement that counts a failure of a parked event is repeated when its answer is lost, also for an event that was redriven in between.",
		File:   "producer/relay_lane.go",
		Old:    `			c.retryLost(e)`,
		New:    `			ln.again = append(ln.again, e)`,
		Test:   Test{"producer", "TestARepeatedFailureDoesNotBuryWhatWasRedrivenTwice"},
	},
	{
		Name: "two-heads", Guarantee: "G4",
		Broken: "Of two retrying events of a key, as after a redrive, both are sent.",
		File:   "store/postgres/parked.go",
		Old:    "const isHead = `(p.key = ''",
		New:    "const isHead = `(p.id > 0",
		Test:   Test{"store/postgres", "TestProducerContract/promotion/two heads are never due"},
	},
	{
		Name: "follower-without-a-head", Guarantee: "G2",
		Broken: "Followers whose head has gone are never sent.",
		File:   "store/postgres/parked.go",
		Old:    `    WHERE head.state = 'following'`,
		New:    `    WHERE head.state = 'retrying' AND head.state = 'following'`,
		Test:   Test{"store/postgres", "TestProducerContract/promotion/heal makes a follower without a head the head"},
	},
	{
		Name: "nobody-promoted", Guarantee: "G2",
		Broken: "When the head of a key was sent, its followers are left without one.",
		File:   "store/postgres/parked.go",
		Old:    `    WHERE p.id = head.id AND p.` + "` + live + `" + ` AND p.id NOT IN (SELECT id FROM kept)`,
		New:    `    WHERE p.id = head.id AND p.` + "` + live + `" + ` AND p.id IN (SELECT id FROM kept)`,
		Test:   Test{"store/postgres", "TestProducerContract/promotion/sent head makes the next event the head"},
	},
	{
		Name: "hold-ignored", Guarantee: "G4",
		Broken: "A dead event under the hold policy lets the next one of its key go.",
		File:   "store/postgres/parked.go",
		Old:    `WHERE state = 'dead' AND key <> '' AND NOT $10`,
		New:    `WHERE state = 'dead' AND key <> '' AND (NOT $10 OR true)`,
		Test:   Test{"store/postgres", "TestProducerContract/promotion/dead head on hold keeps the next event following"},
	},
	{
		Name: "dead-holds-for-ever", Guarantee: "G2",
		Broken: "Under the go-on policy a dead event blocks its key.",
		File:   "store/postgres/parked.go",
		Old:    `                 WHERE $4 AND d.shard = s.shard`,
		New:    `                 WHERE ($4 OR true) AND d.shard = s.shard`,
		Test:   Test{"store/postgres", "TestProducerContract/parked/dead event is not due and blocks with hold only"},
	},
	{
		Name: "late-failure-revives", Guarantee: "G2",
		Broken: "An event that an operator discarded while it was being sent comes back when the sending fails.",
		File:   "store/postgres/parked.go",
		Old:    `AND p.attempts = x.attempts - 1 AND p.` + "` + live + `",
		New:    `AND p.state <> ''`,
		Test:   Test{"store/postgres", "TestProducerContract/promotion/late failure does not revive a discarded event"},
	},
	{
		Name: "sent-before-blocked-keys-are-known", Guarantee: "G4",
		Broken: "A relay that takes a shard over begins to send before it knows which keys are blocked.",
		File:   "producer/relay_lease.go",
		Old:    `		more:   true,`,
		New:    `		more:   true, phase: phaseReady,`,
		Test:   Test{"producer", "TestAShardIsHealedThenLoadedThenRead"},
	},
	{
		Name: "rewritten-event-forgotten", Guarantee: "G2",
		Broken: "An event that is replayed while its mark is under way is not read again.",
		File:   "producer/relay_take.go",
		Old:    `	if e.rewritten {`,
		New:    `	if e.rewritten && e.parked {`,
		Test:   Test{"producer", "TestAnEventIsReplayedThoughItsMarkIsUnderWay"},
	},
	{
		Name: "marked-during-a-read", Guarantee: "G3",
		Broken: "What a read has seen and a mark has removed meanwhile is sent again.",
		File:   "producer/relay_take.go",
		Old:    `	if round, ok := sh.recent[row.Seq]; ok && round == row.Round {`,
		New:    `	if round, ok := sh.recent[row.Seq]; ok && row.Seq < 0 && round == row.Round {`,
		Test:   Test{"producer", "TestWhatIsMarkedDuringAReadIsNotSentAgain"},
	},
}

// routing is about whose fault a failure is.
var routing = []Mutant{
	{
		Name: "outage-burns-attempts", Guarantee: "G5",
		Broken: "Every event in flight counts an attempt when the broker is gone.",
		File:   "producer/relay_outcome.go",
		Old: `		c.routeDown(e)
		e.solo = e.solo || alone // it still may be the one that breaks the channel
		c.requeue(e)`,
		New:  `		c.fail(e)`,
		Test: Test{"producer", "TestAnUnreachableTransportCountsNothingAndKeepsTheOrder"},
	},
	{
		Name: "bad-route-burns-attempts", Guarantee: "G5",
		Broken: "Events on a route where nothing succeeds, as before its queue exists, count attempts until all are dead.",
		File:   "producer/relay_outcome.go",
		Old:    `		c.refuse(e)` + "\n" + `	case transport.Suspect:`,
		New:    `		c.fail(e)` + "\n" + `	case transport.Suspect:`,
		Test:   Test{"producer", "TestAPausedRouteCountsNothingAndDelaysNoOther"},
	},
	{
		Name: "lone-bad-event-is-immortal", Guarantee: "G5",
		Broken: "On a route whose only event is bad, that event is probed for ever and never dies.",
		File:   "producer/relay_route.go",
		Old:    `	return keys <= 1`,
		New:    `	return keys < 1`,
		Test:   Test{"producer", "TestARouteWithOneKeyCountsOnTheBackoffSchedule"},
	},
	{
		Name: "missing-queue-buries", Guarantee: "G5",
		Broken: "The events of a quiet topic whose queue is missing use up their attempts.",
		File:   "producer/relay_route.go",
		Old:    `r.refused.first.outcome == transport.Returned`,
		New:    `r.refused.first.outcome == transport.Confirmed`,
		Test:   Test{"producer", "TestAMissingQueueCostsTheEventsOfAQuietTopicNoAttempts"},
	},
	{
		Name: "probes-do-not-rotate", Guarantee: "G5",
		Broken: "A paused route is probed with its oldest event only, which may be the bad one.",
		File:   "producer/relay_stall.go",
		Old:    `cmp.Or(cmp.Compare(a.probes, b.probes), cmp.Compare(a.Seq, b.Seq)`,
		New:    `cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.probes, b.probes)`,
		Test:   Test{"producer", "TestProbesRotateOverKeysOldestFirst"},
	},
	{
		Name: "culprit-not-looked-for", Guarantee: "G5",
		Broken: "After a message has closed the channel the same window is sent again together, for ever.",
		File:   "producer/relay_outcome.go",
		Old: `	if !alone {
		e.solo = true`,
		New: `	if !alone {
		e.solo = false`,
		Test: Test{"producer", "TestTheEventThatBreaksItsChannelIsFoundAndOnlyItCounts"},
	},
	{
		Name: "attempts-without-end", Guarantee: "G5",
		Broken: "An event that is refused every time is tried for ever.",
		File:   "producer/relay_outcome.go",
		Old:    `	e.dead = e.dead || e.Attempts >= c.cfg.MaxAttempts`,
		New:    `	e.dead = e.dead || e.Attempts > 1000*c.cfg.MaxAttempts`,
		Test:   Test{"producer", "TestTwoBadEventsOneAfterTheOtherDie"},
	},
	{
		Name: "invalid-event-is-retried", Guarantee: "G5",
		Broken: "An event that can never be encoded is tried again like any other.",
		File:   "producer/relay_outcome.go",
		Old: `		e.dead = true
		c.fail(e)`,
		New: `		e.dead = false
		c.fail(e)`,
		Test: Test{"producer", "TestAnInvalidEventIsDeadAtOnce"},
	},
	{
		Name: "passed-over-from-the-head-on", Guarantee: "G1",
		Broken: "An older event behind one that makes room for others is not read again.",
		File:   "producer/relay_stall.go",
		Old:    `			seq = min(seq, l.last.Seq) //`,
		New:    `			seq = min(seq, seq) //`,
		Test:   Test{"producer", "TestAnOlderEventBehindOneThatMakesRoomIsReadAgain"},
	},
	{
		Name: "stalled-route-fills-the-memory", Guarantee: "G5",
		Broken: "The backlog of a paused route takes the room of all others.",
		File:   "producer/relay_stall.go",
		Old:    `	return r.paused || c.success > r.downAt || c.now-r.downAt > downAlone`,
		New:    `	return r.paused && c.success < 0 && r.downAt < 0`,
		Test:   Test{"producer", "TestTheBacklogOfAStalledRouteTakesNoRoomFromOthers"},
	},
	{
		Name: "passed-over-and-forgotten", Guarantee: "G4",
		Broken: "Later events of a key are sent before those that were left in the database while their route took nothing.",
		File:   "producer/relay_revisit.go",
		Old:    `	return ok && !lap` + "\n",
		New:    `	return ok && lap` + "\n",
		Test:   Test{"producer", "TestKeysPassedOverKeepTheirOrderWhenTheirRouteWorks"},
	},
	{
		Name: "recovered-route-waits-for-a-sweep", Guarantee: "G5",
		Broken: "What was left in the database while a route took nothing is not read again when it works.",
		File:   "producer/relay_route.go",
		Old:    `	c.hurry(r)` + "\n",
		New:    ``,
		Test:   Test{"producer", "TestBacklogOfARouteThatWorksAgainIsReadWithoutAPause"},
	},
	{
		Name: "stalled-route-is-silent", Guarantee: "G5",
		Broken: "A route on which nothing succeeds for its grace period is never reported.",
		File:   "producer/relay_route.go",
		Old:    `		r.reported = true` + "\n",
		New:    `		r.reported = true` + "\n" + `		continue` + "\n",
		Test:   Test{"producer", "TestARouteOnWhichNothingSucceedsIsReportedAfterItsGrace"},
	},
	{
		Name: "hot-key-starves", Guarantee: "G5",
		Broken: "A key with a long backlog takes all the room of its shard.",
		File:   "producer/relay_take.go",
		Old:    `	if l != nil && l.n >= c.cfg.MaxPerKey {`,
		New:    `	if l != nil && l.n >= 1e9 {`,
		Test:   Test{"producer", "TestAHotKeyDoesNotStarveItsNeighboursAndKeepsItsOrder"},
	},
	{
		Name: "replayed-events-as-late-ones", Guarantee: "G4",
		Broken: "Events that a replay has put back are taken for late commits where a relay still looks for those, before earlier ones of their key.",
		File:   "producer/relay_fetch.go",
		Old:    `	return row.Key != "" && row.Round > sh.round`,
		New:    `	return row.Key == "\x00" && row.Round > sh.round`,
		Test:   Test{"producer", "TestEventsReplayedTogetherKeepTheirOrder"},
	},
	{
		Name: "news-of-another-shard", Guarantee: "G2",
		Broken: "A commit has its relay look for it in another shard, so that its events wait for a poll.",
		File:   "producer/signal.go",
		Old:    `	n.shards |= 1 << r.Shard`,
		New:    `	n.shards |= 1 << ((r.Shard + 1) % idgen.Shards)`,
		Test:   Test{"producer", "TestOnlyTheShardsOfACommitAreReadForIt"},
	},
}
