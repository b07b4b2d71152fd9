package mutants

// ordering is about the order of a key's events at the relay.
var ordering = []Mutant{
	{
		Name: "no-waves", Guarantee: "G4",
		Broken: "The next event of a key is sent before its predecessor is confirmed.",
		File:   "producer/relay/internal/core/keys.go",
		Old: `		e.next.state = entryWaiting
	}
	ks.promote(l)`,
		New: `		e.next.state = entryWaiting
	}
	ks.place(e)`,
		Test: Test{"producer/relay/internal/core", "TestEventsOfOneKeyAreSentOneByOneInOrder"},
	},
	{
		Name: "blocked-key-not-respected", Guarantee: "G4",
		Broken: "A fresh event of a key is sent although earlier ones of it are parked.",
		File:   "producer/relay/internal/core/keys.go",
		Old: `		sh.index[e.Seq] = e
		ks.follow(e)`,
		New: `		sh.index[e.Seq] = e
		ks.count(e)
		l.insert(e)
		ks.place(e)`,
		Test: Test{"producer/relay/internal/core", "TestAFreshEventWaitsUntilTheLastParkedOneOfItsKeyHasGone"},
	},
	{
		Name: "followers-stay", Guarantee: "G4",
		Broken: "The later events of a parked event's key stay in the queue, and are sent before it.",
		File:   "producer/relay/internal/core/keys.go",
		Old:    `		if !e.state.underway() {`,
		New:    `		if e.state == entryConfirmed {`,
		Test:   Test{"producer/relay/internal/core", "TestAFailedKeyIsSentFromItsParkedEventsInOrder"},
	},
	{
		Name: "read-before-sent-is-recorded", Guarantee: "G4",
		Broken: "The parked events of a key are read while a sent one of them is not recorded, and the key stands still.",
		File:   "producer/relay/internal/core/parking.go",
		Old:    `len(pw.fetch) == 0 || len(pw.sent)+len(pw.again) > 0 ||`,
		New:    `len(pw.fetch) == 0 ||`,
		Test:   Test{"producer/relay/internal/core", "TestParkedEventsOfManyKeysAreFewStatements"},
	},
	{
		Name: "a-statement-for-each-shard", Guarantee: "G3",
		Broken: "What was sent of parked events is recorded shard by shard: a redrive of many slows down all other traffic.",
		File:   "producer/relay/internal/core/parking.go",
		Old: `			if !yield(other) {
				return
			}`,
		New: `			if !yield(other) || true {
				return
			}`,
		Test: Test{"producer/relay/internal/core", "TestParkedEventsOfManyKeysAreFewStatements"},
	},
	{
		Name: "sent-under-an-earlier-lease", Guarantee: "G4",
		Broken: "A parked event is removed by a mark of an earlier lease of its shard.",
		File:   "store/postgres/parked.go",
		Old:    `ON f.shard = m.shard AND f.epoch = m.epoch`,
		New:    `ON f.shard = m.shard AND m.epoch > -1`,
		Test:   Test{"store/postgres", "TestProducerContract/parked/events of several shards are recorded as sent, except in lost shards"},
	},
	{
		Name: "sent-in-another-shard", Guarantee: "G4",
		Broken: "A parked event is removed by a relay that does not own its shard.",
		File:   "store/postgres/parked.go",
		Old: `    WHERE p.shard + 0 = c.shard AND p.id = c.id AND p.state <> 'discarded'
    RETURNING`,
		New: `    WHERE p.id = c.id AND p.state <> 'discarded'
    RETURNING`,
		Test: Test{"store/postgres", "TestProducerContract/parked/events of several shards are recorded as sent, except in lost shards"},
	},
	{
		Name: "parked-before-the-marks", Guarantee: "G4",
		Broken: "A failed event is parked before its delivered predecessors are marked; a crash then sends them behind it.",
		File:   "producer/relay/internal/core/parking.go",
		Old:    `	if l.marking == 0 {`,
		New:    `	if l.marking >= 0 {`,
		Test:   Test{"producer/relay/internal/core", "TestAFailureIsParkedAfterTheMarksOfItsPredecessors"},
	},
	{
		Name: "hole-forgotten", Guarantee: "G4",
		Broken: "Reading goes on past events of a hot key for which there is no room, without remembering them.",
		File:   "producer/relay/internal/core/keys.go",
		Old:    `	case l != nil && l.hole != 0 && row.Seq >= l.hole:`,
		New:    `	case l != nil && l.hole < 0 && row.Seq >= l.hole:`,
		Test:   Test{"producer/relay/internal/core", "TestAHotKeyDoesNotStarveItsNeighboursAndKeepsItsOrder"},
	},
	{
		Name: "doubtful-park-trusted", Guarantee: "G2",
		Broken: "A repeated statement that parks an event counts as the first; if an operator has settled the event since, its key waits for ever.",
		File:   "producer/relay/internal/core/parking.go",
		Old:    `				case e.doubtful:`,
		New:    `				case false:`,
		Test:   Test{"producer/relay/internal/core", "TestARepeatedParkDoesNotHoldUpTheKeyOfWhatWasDiscarded"},
	},
	{
		Name: "lost-retry-repeated", Guarantee: "G5",
		Broken: "The statement that counts a failure of a parked event is repeated when its answer is lost, even if the event was redriven meanwhile.",
		File:   "producer/relay/internal/core/parking.go",
		Old:    `			pk.retryLost(e)`,
		New:    `			pw.again = append(pw.again, e)`,
		Test:   Test{"producer/relay/internal/core", "TestARepeatedFailureDoesNotBuryWhatWasRedrivenTwice"},
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
		Old:    `    WHERE p.id = head.id AND p.` + "` + alive + `" + ` AND p.id NOT IN (SELECT id FROM kept)`,
		New:    `    WHERE p.id = head.id AND p.` + "` + alive + `" + ` AND p.id IN (SELECT id FROM kept)`,
		Test:   Test{"store/postgres", "TestProducerContract/promotion/sent head makes the next event the head"},
	},
	{
		Name: "promoted-by-state", Guarantee: "G2",
		Broken: "Behind an ANALYZE that saw dead events only, a relay reads all redriven events for each that it has sent.",
		File:   "store/postgres/parked.go",
		Old:    `    WHERE p.id = head.id AND p.` + "` + alive + `" + ` AND p.id NOT IN (SELECT id FROM kept)`,
		New:    `    WHERE p.id = head.id AND p.` + "` + live + `" + ` AND p.id NOT IN (SELECT id FROM kept)`,
		Test:   Test{"store/postgres", "TestRedrivenEventsCostLittleBehindAnAnalyze"},
	},
	{
		Name: "hold-ignored", Guarantee: "G4",
		Broken: "A dead event under the hold policy lets the next event of its key go.",
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
		Old:    `AND p.attempts = x.attempts - 1 AND p.` + "` + alive + `",
		New:    `AND p.state <> ''`,
		Test:   Test{"store/postgres", "TestProducerContract/promotion/late failure does not revive a discarded event"},
	},
	{
		Name: "sent-before-blocked-keys-are-known", Guarantee: "G4",
		Broken: "A relay that takes a shard over begins to send before it knows the blocked keys.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `	sh.more, sh.replaysKnown = true, g.Ticket`,
		New:    `	sh.more, sh.replaysKnown, sh.phase = true, g.Ticket, phaseReady`,
		Test:   Test{"producer/relay/internal/core", "TestAShardIsHealedThenLoadedThenRead"},
	},
	{
		Name: "rewritten-event-forgotten", Guarantee: "G2",
		Broken: "An event that is replayed while its mark is under way is not read again.",
		File:   "producer/relay/internal/core/keys.go",
		Old:    `	if e.rewritten {`,
		New:    `	if e.rewritten && e.parked {`,
		Test:   Test{"producer/relay/internal/core", "TestAnEventIsReplayedThoughItsMarkIsUnderWay"},
	},
	{
		Name: "wanted-above-the-mark", Guarantee: "G4",
		Broken: "A row that is read by its number advances a mark that was set back, past unread rows.",
		File:   "producer/relay/internal/core/late_commits.go",
		Old:    `		c.shards[p].want(seq)`,
		New:    `		c.shards[p].wanted, c.shards[p].pollOnce = append(c.shards[p].wanted, seq), true`,
		Test:   Test{"producer/relay/internal/core", "TestAMarkThatIsSetBackDuringAReadPassesNoRow"},
	},
	{
		Name: "marked-during-a-read", Guarantee: "G3",
		Broken: "An event that a read has seen and a mark has removed meanwhile is sent again.",
		File:   "producer/relay/internal/core/keys.go",
		Old:    `	if round, ok := sh.recent[row.Seq]; ok && round == row.Round {`,
		New:    `	if round, ok := sh.recent[row.Seq]; ok && row.Seq < 0 && round == row.Round {`,
		Test:   Test{"producer/relay/internal/core", "TestWhatIsMarkedDuringAReadIsNotSentAgain"},
	},
}
