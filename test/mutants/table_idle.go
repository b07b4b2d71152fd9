package mutants

// idling is about what an idle relay and an idle inbox leave out.
var idling = []Mutant{
	{
		Name: "idle-without-signals", Guarantee: "G2",
		Broken: "A relay that gets no wake-ups, as behind a pooler, polls as rarely as one that does.",
		File:   "producer/relay/internal/core/signals.go",
		Old:    `sg.heard && sg.now >= sg.doubtUntil`,
		New:    `sg.now >= sg.doubtUntil`,
		Test:   Test{"producer/relay/internal/core", "TestRelayWithoutSignalsPollsAsOften"},
	},
	{
		Name: "idle-after-listening", Guarantee: "G2",
		Broken: "A relay whose connection for wake-ups is gone polls as rarely as before.",
		File:   "producer/relay/loop.go",
		Old:    `		l.listening(false)`,
		New:    `		l.listening(true)`,
		Test:   Test{"producer/relay", "TestIdleRelayCostsFewStatementsWhileItsSignalsArrive"},
	},
	{
		Name: "signals-without-doubt", Guarantee: "G2",
		Broken: "A process that sends no wake-ups beside others that do has all its events found late.",
		File:   "producer/relay/internal/core/signals.go",
		Old:    `	sg.heard, sg.doubtUntil = false, sg.now+doubtFor`,
		New:    `	sg.heard, sg.doubtUntil = false, sg.now`,
		Test:   Test{"producer/relay/internal/core", "TestEventWithoutASignalMakesTheRelayPollOften"},
	},
	{
		Name: "idle-at-once", Guarantee: "G2",
		Broken: "An event that is committed after its wake-up is found late.",
		File:   "producer/relay/internal/core/signals.go",
		Old:    `(sg.now-sg.newsAt)/idleAfter >= sg.cfg.PollIdle`,
		New:    `(sg.now-sg.newsAt)*100 >= sg.cfg.PollIdle`,
		Test:   Test{"producer/relay/internal/core", "TestEarlySignalIsFollowedByFrequentPolls"},
	},
	{
		Name: "rest-without-a-renewal", Guarantee: "G4",
		Broken: "An idle relay that stood still while its session ended sends an event before it hears of the end.",
		File:   "producer/relay/loop.go",
		Old:    `		c.Suspended(now) // nobody has looked`,
		New:    `		c.Overdue(now, 0)`,
		Test:   Test{"producer/relay", "TestIdleRelaySendsNothingThatMayBeOfAnotherRelay"},
	},
	{
		Name: "poll-of-a-failed-renewal", Guarantee: "G2",
		Broken: "What a poll would have found counts as read when its renewal has failed.",
		File:   "producer/relay/internal/core/idle.go",
		Old:    `	if s.poll.Err = err; err == nil {`,
		New:    `	if err == nil {`,
		Test:   Test{"producer/relay/internal/core", "TestRenewalThatFailsTakesNoEventAlong"},
	},
	{
		Name: "due-event-looked-over", Guarantee: "G2",
		Broken: "A deferred event that a poll of the queue finds due waits for the next poll of its own.",
		File:   "producer/relay/internal/core/deferred.go",
		Old:    `	case cl.Err != nil, f.Look == nil, f.Next == 0:`,
		New:    `	case cl.Err != nil, f.Look == nil:`,
		Test:   Test{"producer/relay/internal/core", "TestDeferredEventWithoutASignalIsFoundByAPoll"},
	},
	{
		Name: "renewal-held-up-by-heartbeats", Guarantee: "G4",
		Broken: "A heartbeat that fails takes the renewal of the leases along, again and again.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `		ls.beatsApart = true // what`,
		New:    `		ls.beatsApart = false // what`,
		Test:   Test{"producer/relay/internal/core", "TestHeartbeatThatFailsCostsNoLease"},
	},
	{
		Name: "other-database-beside-due-messages", Guarantee: "G3",
		Broken: "An idle inbox does not notice that its database is another one: its window knows lost messages.",
		File:   "consumer/database.go",
		Old: `	if err == nil {
		err = i.identified(ctx, name, begun)
	}`,
		New: `	if err == nil {
		i.identity.record(name, begun)
	}`,
		Test: Test{"consumer", "TestIdleInboxLooksForDueMessagesAndAtTheDatabaseTogether"},
	},
	{
		Name: "owned-shards-told-before-signals", Guarantee: "G2",
		Broken: "A relay beside the writers never learns that signals work, and polls as often as without.",
		File:   "producer/relay/loop.go",
		Old:    `	if !l.heard.Load() || l.still.doubtful(now) {`,
		New:    `	if l.still.doubtful(now) {`,
		Test:   Test{"producer/relay", "TestOthersAreNotToldOfOwnedShards"},
	},
	{
		Name: "lost-shard-kept-secret", Guarantee: "G2",
		Broken: "The next owner of a shard is not told of events that were committed before the relay knew of its loss.",
		File:   "producer/relay/loop.go",
		Old:    `	if lost != 0 && l.wakes.others != nil {`,
		New:    `	if lost == 1 && l.wakes.others != nil {`,
		Test:   Test{"producer/relay", "TestOthersAreNotToldOfOwnedShards"},
	},
	{
		Name: "ended-lease-owned", Guarantee: "G2",
		Broken: "Others are not told of events in shards whose lease has ended here.",
		File:   "producer/relay/loop.go",
		Old:    `now < time.Duration(l.until[no].Load()) {`,
		New:    `l.until[no].Load() > 0 {`,
		Test:   Test{"producer/relay", "TestOthersAreNotToldOfOwnedShards"},
	},
}
