package mutants

// leasing is about who owns a shard.
var leasing = []Mutant{
	{
		Name: "sequence-anew-not-looked-for", Guarantee: "G5",
		Broken: "Events of a sequence that has begun anew stand below the relay's marks until its next sweep.",
		File:   "producer/relay/internal/core/leases.go",
		Old: `	ls.numbers.checked(s)
`,
		New:  ``,
		Test: Test{"producer/relay/internal/core", "TestEventsBelowTheMarksAfterATruncateAreSentWithinALease"},
	},
	{
		Name: "floor-above-sequence-anew", Guarantee: "G5",
		Broken: "A writer whose sequence has begun anew commits below the relay's range: a later event of its key goes first.",
		File:   "producer/relay/internal/core/numbers.go",
		Old:    `		return min(nb.read, nb.last)`,
		New:    `		return nb.read`,
		Test:   Test{"producer/relay/internal/core", "TestEventsOfASequenceThatBeginsAnewAreSentInOrder"},
	},
	{
		Name: "lost-event-not-told", Guarantee: "G2",
		Broken: "A row that reuses the ID of a lost event passes for the lost event in memory.",
		File:   "producer/relay/internal/core/keys.go",
		Old:    `	if ks.leases.contradicts(known, row) || ks.leases.contradicts(sh.parked[row.Seq], row) {`,
		New:    `	if ks.leases.contradicts(nil, row) {`,
		Test:   Test{"producer/relay/internal/core", "TestEventThatHasTheIDOfALostOneIsSent"},
	},
	{
		Name: "same-first-round", Guarantee: "G2",
		Broken: "Two events that get one ID from a database that lost commits have rows that cannot be told apart.",
		File:   "migrations/postgres/0008_rounds.sql",
		Old:    `-1 - (random() * 4503599627370496)::bigint`,
		New:    `0`,
		Test:   Test{"store/postgres", "TestMarkOfALostEventKeepsTheRowOfTheEventThatHasItsID"},
	},
	{
		Name: "discarded-head-sent-again", Guarantee: "G5",
		Broken: "A head that was discarded in flight is sent again and again while its route is down, and holds up its key.",
		File:   "producer/relay/internal/core/dispatcher.go",
		Old:    `	if !e.parked || l == nil || !l.verify {`,
		New:    `	if !e.parked || l == nil || l.verify {`,
		Test:   Test{"producer/relay/internal/core", "TestHeadThatIsDiscardedInFlightHoldsUpNothing"},
	},
	{
		Name: "move-overtaken", Guarantee: "G5",
		Broken: "A head that is due is sent while an earlier event of its key is being moved to its side.",
		File:   "producer/relay/internal/core/key_line.go",
		Old:    `	if l.following == 0 {`,
		New:    `	if l.following >= 0 {`,
		Test:   Test{"producer/relay/internal/core", "TestWhatIsOnItsWayBehindAHeadGoesBeforeIt"},
	},
	{
		Name: "plan-of-an-empty-queue-kept", Guarantee: "G5",
		Broken: "A plan that was made while the queue was empty reads the whole queue after it has filled up.",
		File:   "store/postgres/sql.go",
		Old:    `set_config('enable_seqscan', 'off', true),`,
		New:    `set_config('enable_seqscan', 'on', true),`,
		Test:   Test{"store/postgres", "TestKeptPlansHoldWhenTheQueueFillsUp"},
	},
	{
		Name: "local-clock", Guarantee: "G4",
		Broken: "Leases end by the clock of the relay's machine, not by the database's.",
		File:   "store/postgres/leases.go",
		Old: `       OR lease_until <= clock_timestamp()
`,
		New: `       OR lease_until <= pg_catalog.clock_timestamp()
`,
		Test: Test{"store/postgres", "TestLeasesLastByTheClockOfTheDatabase"},
	},
	{
		Name: "lease-far-ahead", Guarantee: "G2",
		Broken: "After the database's clock was set back, the shards of a dead relay stand still until it has caught up.",
		File:   "store/postgres/leases.go",
		Old: `
       OR leased_at < lease_until AND leased_at - clock_timestamp() > lease_until - leased_at -- the clock was set back`,
		New:  ``,
		Test: Test{"store/postgres", "TestLeaseOfBeforeTheClockWasSetBackHasExpired"},
	},
	{
		Name: "parked-by-a-clock-ahead", Guarantee: "G5",
		Broken: "Events that were parked while the clock was ahead wait for as long as the clock was ahead.",
		File:   "store/postgres/parked.go",
		Old:    `statement_timestamp()), (statement_timestamp() + $5::bigint * interval '1 us', 'infinity')`,
		New:    `statement_timestamp())`,
		Test:   Test{"store/postgres", "TestProducerContract/parked/event that was to wait for longer than any may is due"},
	},
	{
		Name: "longest-wait-unknown", Guarantee: "G5",
		Broken: "A relay does not tell the database how long an event may wait at most.",
		File:   "producer/relay/internal/statement/reads.go",
		Old:    `by.Longest, s.Limit`,
		New:    `1<<62, s.Limit`,
		Test:   Test{"producer/relay/internal/core", "TestAnEventThatAClockAheadParkedDoesNotWaitForThatTime"},
	},
	{
		Name: "lease-judged-by-another", Guarantee: "G4",
		Broken: "A relay takes over the shards of a relay with a longer LeaseTTL that still sends from them.",
		File:   "store/postgres/leases.go",
		Old:    `leased_at - clock_timestamp() > lease_until - leased_at --`,
		New:    `lease_until - clock_timestamp() > 2 * $2::float8 * interval '1 us' --`,
		Test:   Test{"store/postgres", "TestProducerContract/lease/lease lasts as long as its owner asked for"},
	},
	{
		Name: "same-epoch-again", Guarantee: "G4",
		Broken: "A takeover keeps the epoch, so the fence does not tell the owners apart.",
		File:   "store/postgres/leases.go",
		Old:    `epoch = s.epoch + 1, leased_at`,
		New:    `epoch = s.epoch, leased_at`,
		Test:   Test{"store/postgres", "TestProducerContract/lease/expired lease is taken over abruptly with a higher epoch"},
	},
	{
		Name: "takeover-beside-a-statement", Guarantee: "G4",
		Broken: "A shard is taken over while a statement of its owner is under way.",
		File:   "store/postgres/leases.go",
		Old: `    FOR UPDATE SKIP LOCKED
)
UPDATE`,
		New: `    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE`,
		Test: Test{"store/postgres", "TestTakeoverPassesOverAShardWhereAFencedStatementRuns"},
	},
	{
		Name: "lost-lease-renewed", Guarantee: "G4",
		Broken: "A relay that was stopped renews a lease that another relay has taken since.",
		File:   "store/postgres/leases.go",
		Old: `    WHERE s.owner = $1 AND s.epoch = l.epoch
    ORDER BY s.shard
    FOR NO KEY UPDATE OF s`,
		New: `    WHERE $1::text <> '' AND l.epoch > 0
    ORDER BY s.shard
    FOR NO KEY UPDATE OF s`,
		Test: Test{"store/postgres", "TestProducerContract/lease/lost lease is not renewed"},
	},
	{
		Name: "mark-without-fence", Guarantee: "G4",
		Broken: "A relay that has lost a shard still marks events in it.",
		File:   "store/postgres/queue.go",
		Old: `    SELECT s.shard, s.epoch, set_config('synchronous_commit', 'off', true)
    FROM {{outbox_shards}} s
    JOIN unnest($2::smallint[], $3::bigint[]) AS l (shard, epoch) ON l.shard = s.shard
    WHERE s.owner = $1 AND s.epoch = l.epoch`,
		New: `    SELECT s.shard, l.epoch, set_config('synchronous_commit', 'off', true)
    FROM {{outbox_shards}} s
    JOIN unnest($2::smallint[], $3::bigint[]) AS l (shard, epoch) ON l.shard = s.shard
    WHERE $1::text <> ''`,
		Test: Test{"store/postgres", "TestProducerContract/fence/owner that lost its shards changes nothing in the queue"},
	},
	{
		Name: "fence-without-lock", Guarantee: "G4",
		Broken: "The fence of a mark looks at the lease without locking it, and misses a takeover that commits meanwhile.",
		File:   "store/postgres/queue.go",
		Old: `    FOR KEY SHARE OF s
), found`,
		New:  `), found`,
		Test: Test{"store/postgres", "TestStatementOfAStoppedRelayWaitsForATakeoverAndChangesNothing"},
	},
	{
		Name: "fence-that-stalls-renewal", Guarantee: "G4",
		Broken: "The fence locks so much that renewals wait for it, and leases run out under load.",
		File:   "store/postgres/queue.go",
		Old: `    FOR KEY SHARE OF s
), found`,
		New: `    FOR SHARE OF s
), found`,
		Test: Test{"store/postgres", "TestRenewalWaitsForNoFencedStatementAndReleaseDoes"},
	},
	{
		Name: "park-without-fence", Guarantee: "G4",
		Broken: "A relay that has lost a shard still parks, releases and buries events in it.",
		File:   "store/postgres/parked.go",
		Old:    `    WHERE s.owner = $1 AND s.shard = $2 AND s.epoch = $3`,
		New:    `    WHERE $1::text <> '' AND s.shard = $2 AND $3::bigint > 0`,
		Test:   Test{"store/postgres", "TestProducerContract/fence/owner that lost its shards changes nothing that is parked"},
	},
	{
		Name: "lease-from-the-answer", Guarantee: "G4",
		Broken: "A renewed lease counts from when the answer arrived, which is later than the database thinks.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `		sh.until = cl.issued + ls.cfg.LeaseTTL - ls.margin()`,
		New:    `		sh.until = ls.now + ls.cfg.LeaseTTL - ls.margin()`,
		Test:   Test{"producer/relay/internal/core", "TestARenewedLeaseCountsFromBeforeItsRenewal"},
	},
	{
		Name: "sends-after-the-lease", Guarantee: "G4",
		Broken: "A relay goes on sending from a shard whose lease has ended.",
		File:   "producer/relay/internal/core/dispatcher.go",
		Old:    `	if dp.now >= sh.until {`,
		New:    `	if dp.now >= sh.until && sh.gone {`,
		Test:   Test{"producer/relay/internal/core", "TestNothingIsSentAfterTheLeaseHasEnded"},
	},
	{
		Name: "given-back-in-flight", Guarantee: "G4",
		Broken: "A shard is given back while an event of it is in flight.",
		File:   "producer/relay/internal/core/shard.go",
		Old:    `	return sh.inflight == 0 && sh.marking == 0 && sh.writer.idle()`,
		New:    `	return sh.writer.idle()`,
		Test:   Test{"producer/relay/internal/core", "TestSurplusIsGivenBackWhenItsSendsHaveEnded"},
	},
	{
		Name: "first-relay-keeps-all", Guarantee: "G5",
		Broken: "A relay gives no shards back when other relays appear.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `func (ls *leases) share() int { return (idgen.Shards + ls.live - 1) / max(ls.live, 1) }`,
		New:    `func (ls *leases) share() int { return idgen.Shards }`,
		Test:   Test{"producer/relay/internal/core", "TestShardsAreSharedFairly"},
	},
	{
		Name: "crash-not-passed-on", Guarantee: "G5",
		Broken: "The successor of a dead relay does not mark its first messages as possibly started, so a consumer counts no start.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `		sh.redeliver = ls.cfg.Window`,
		New:    `		sh.redeliver = 0`,
		Test:   Test{"producer/relay/internal/core", "TestOnlyTheFirstWindowAfterAnAbruptTakeoverIsRedelivered"},
	},
	{
		Name: "rewind-cleared-blindly", Guarantee: "G2",
		Broken: "A relay that has answered one operator forgets the request of the next operator.",
		File:   "store/postgres/leases.go",
		Old:    ` AND rewind_ticket = $4` + "`",
		New:    ` AND $4::bigint > 0` + "`",
		Test:   Test{"store/postgres", "TestProducerContract/operator/rewind is cleared by its own ticket only"},
	},
	{
		Name: "operator-without-rewind", Guarantee: "G2",
		Broken: "An operator's change does not tell the owner of the shard to read again.",
		File:   "store/postgres/operator.go",
		Old: `    WHERE s.shard = c.shard
)
SELECT e.dispatch_id`,
		New: `    WHERE s.shard = c.shard AND false
)
SELECT e.dispatch_id`,
		Test: Test{"store/postgres", "TestProducerContract/operator/operator's change asks the owner for a rewind"},
	},
}

// relaying is about what a relay sends and when it calls an event delivered.
var relaying = []Mutant{
	{
		Name: "unroutable-of-any-topic-dropped", Guarantee: "G2",
		Broken: "DropUnroutable drops the unroutable events of every topic.",
		File:   "producer/relay/unroutable.go",
		Old:    `!topics.MatchAny(d.patterns, topic)`,
		New:    `!topics.MatchAny(d.patterns, topic) && len(d.patterns) == 0`,
		Test:   Test{"producer/relay", "TestEventOfATopicThatMayHaveNobodyCountsAsDelivered"},
	},
	{
		Name: "mark-before-confirm", Guarantee: "G2",
		Broken: "An event counts as delivered when it was handed to the transport.",
		File:   "producer/relay/send.go",
		Old:    `	l.sender.Send(ctx, topic, msgs[0], done)`,
		New: `	done(transport.Result{Outcome: transport.Confirmed})
	l.sender.Send(ctx, topic, msgs[0], done)`,
		Test: Test{"producer/relay", "TestASendThatIsNotAnsweredIsRepeatedAfterItsTimeout"},
	},
	{
		Name: "mark-without-confirm", Guarantee: "G2",
		Broken: "An event whose outcome is unknown, or that was refused, counts as delivered.",
		File:   "producer/relay/internal/core/dispatcher.go",
		Old:    `	if res.Outcome == transport.Confirmed && !res.Unsent {` + "\n" + `		dp.confirmed(e, tail)`,
		New:    `	if res.Outcome != transport.Invalid && !res.Unsent {` + "\n" + `		dp.confirmed(e, tail)`,
		Test:   Test{"producer/relay/internal/core", "TestAnUnreachableTransportCountsNothingAndKeepsTheOrder"},
	},
	{
		Name: "batch-confirms-all", Guarantee: "G2",
		Broken: "When a publisher fails on a batch, the whole batch counts as failed.",
		File:   "producer/relay/batch_sender.go",
		Old:    `	if err == nil || len(batch) == 1 {`,
		New:    `	if err == nil || len(batch) >= 1 {`,
		Test:   Test{"producer/relay", "TestABatchThatFailedIsNarrowedDown"},
	},
	{
		Name: "cursor", Guarantee: "G2",
		Broken: "The queue is read by a cursor: an event that commits after an event with a higher id is skipped.",
		File:   "producer/relay/internal/core/late_commits.go",
		Old: `	if from >= mark {
		return from, wanted`,
		New: `	if from >= mark || mark > 0 {
		return from, wanted`,
		Test: Test{"producer/relay", "TestAnEventOfALowerIDThatCommitsLaterIsDelivered"},
	},
	{
		Name: "late-event-overtaken", Guarantee: "G4",
		Broken: "Late commits are read in a later statement than the events behind them.",
		File:   "producer/relay/internal/core/late_commits.go",
		Old:    `	from = max(min(floor, sh.known), sh.sealed)`,
		New:    `	from = max(sh.known, sh.sealed)`,
		Test:   Test{"producer/relay/internal/core", "TestAnEventThatCommitsLateIsNotOvertakenByTheNextOfItsKey"},
	},
	{
		Name: "old-writer-overtaken", Guarantee: "G4",
		Broken: "Events behind those of a long transaction are sent without checking whether the transaction has committed.",
		File:   "producer/relay/internal/core/reader.go",
		Old:    `return f.old < part.lateFrom })`,
		New:    `return f.old < part.lateFrom && f.lap })`,
		Test:   Test{"producer/relay/internal/core", "TestAnEventThatCommitsLateIsNotOvertakenByTheNextOfItsKey"},
	},
	{
		Name: "bottom-above-memory", Guarantee: "G4",
		Broken: "Events in memory count as gone for the next owner of their shard, which does not read them.",
		File:   "producer/relay/internal/core/low_keeper.go",
		Old: `		for seq := range sh.index {
			above(seq)
		}
`,
		New:  ``,
		Test: Test{"producer/relay/internal/core", "TestBottomIsBelowWhatWaits"},
	},
	{
		Name: "bottom-above-writers", Guarantee: "G4",
		Broken: "The next owner of a shard does not read the events of a long transaction.",
		File:   "producer/relay/internal/core/low_keeper.go",
		Old:    `		low = min(low, w.floor)`,
		New:    `		low = max(low, w.floor)`,
		Test:   Test{"producer/relay/internal/core", "TestBottomIsBelowWhatWaits"},
	},
	{
		Name: "bottom-above-what-was-passed-over", Guarantee: "G4",
		Broken: "The next owner of a shard does not read the events that wait for a dead route.",
		File:   "producer/relay/internal/core/low_keeper.go",
		Old:    `		above(sh.back.first)`,
		New:    `		above(0)`,
		Test:   Test{"producer/relay/internal/core", "TestBottomIsBelowWhatWaits"},
	},
	{
		Name: "bottom-of-a-lost-database", Guarantee: "G2",
		Broken: "Marks from before a fail-over still count, and new events with reused numbers are not read.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `	if g.History == ls.identity {`,
		New:    `	if g.History != "" || ls.identity == "" {`,
		Test:   Test{"producer/relay/internal/core", "TestBottomOfALostDatabaseIsNotBelieved"},
	},
	{
		Name: "low-water-of-any-epoch", Guarantee: "G2",
		Broken: "The kept mark of a shard counts after a relay of an earlier release, which does not lower it.",
		File:   "store/postgres/leases.go",
		Old:    `    low_epoch = CASE WHEN s.low_epoch = s.epoch AND`,
		New:    `    low_epoch = CASE WHEN`,
		Test:   Test{"store/postgres", "TestWhatIsKeptDoesNotCountAfterAnOwnerThatDoesNotKnowOfIt"},
	},
	{
		Name: "writers-by-open-transactions", Guarantee: "G2",
		Broken: "Every transaction of the server counts as a writer, so that one idle transaction elsewhere delays the forgetting of writers for ever.",
		File:   "store/postgres/queue.go",
		Old: `
      AND relation = $1::text::regclass
)`,
		New: `
      AND $1::text::regclass IS NOT NULL
)`,
		Test: Test{"store/postgres", "TestIdleTransactionsThatWriteNoEventAreNoWriters"},
	},
	{
		Name: "mark-without-round", Guarantee: "G2",
		Broken: "A late mark of an earlier sending deletes the row of an event that was queued again.",
		File:   "store/postgres/queue.go",
		Old:    ` AND q.round = m.round`,
		New:    ` AND m.round IS NOT NULL`,
		Test:   Test{"store/postgres", "TestProducerContract/queue/mark of another round keeps the row"},
	},
	{
		Name: "lost-outcome-is-awaited-for-ever", Guarantee: "G2",
		Broken: "An event whose publisher tells no outcome is never sent again.",
		File:   "producer/relay/internal/core/unanswered.go",
		Old: `		if s.awaited() {
			dp.outcome`,
		New: `		if !s.awaited() {
			dp.outcome`,
		Test: Test{"producer/relay/internal/core", "TestASendWithoutAnOutcomeIsGivenUpAndSentAgain"},
	},
	{
		Name: "overdue-sends-are-not-told", Guarantee: "G2",
		Broken: "Sends whose contexts ended without an outcome are not noticed.",
		File:   "producer/relay/send.go",
		Old:    `		if parent.Err() == nil {`,
		New:    `		if parent.Err() != nil {`,
		Test:   Test{"producer/relay", "TestDeadlinesTellWhichSendsAreOverdue"},
	},
	{
		Name: "missing-event-is-silent", Guarantee: "G2",
		Broken: "A queue row whose event is missing is never seen.",
		File:   "store/postgres/queue.go",
		Old: `) q
LEFT JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = q.id OFFSET 0) e ON true`,
		New: `) q
JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = q.id OFFSET 0) e ON true`,
		Test: Test{"store/postgres", "TestQueueRowWithoutAnEventIsMissingAndNotSilent"},
	},
	{
		Name: "failed-mark-forgotten", Guarantee: "G2",
		Broken: "Events whose mark failed are forgotten: they stay in the queue, and no relay reads them.",
		File:   "producer/relay/internal/core/marking.go",
		Old:    `		mk.pending = append(cl.entries, mk.pending...)`,
		New:    `		mk.pending = append(cl.entries[:0], mk.pending...)`,
		Test:   Test{"producer/relay/internal/core", "TestStatementsAreRepeatedUntilTheyWork"},
	},
	{
		Name: "statements-without-pause", Guarantee: "G5",
		Broken: "A failing database is asked again at once, as fast as the relay can.",
		File:   "producer/relay/internal/core/machine.go",
		Old:    `	return bound/2 + time.Duration(c.rand.Int64N(int64(bound)/2+1))`,
		New:    `	return min(bound, time.Microsecond)`,
		Test:   Test{"producer/relay/internal/core", "TestAFailingDatabaseIsAskedAtGrowingIntervals"},
	},
	{
		Name: "twice-reported-outcome", Guarantee: "G2",
		Broken: "An outcome that a publisher reports late counts for the next sending of the event.",
		File:   "producer/relay/internal/core/dispatcher.go",
		Old:    `	if e.state != entrySending || e.Gen != res.Gen {`,
		New:    `	if e.state != entrySending {`,
		Test:   Test{"producer/relay/internal/core", "TestAnOutcomeThatIsReportedTwiceCountsOnce"},
	},
	{
		Name: "removed-by-age", Guarantee: "G2",
		Broken: "The janitor removes parked events by their age, whatever their state.",
		File:   "store/postgres/janitor.go",
		Old: "const unclaimed = `p.state IN ('discarded', 'cancelled') AND p.discarded_at < statement_timestamp() - $1::bigint * interval '1 us'" + `
      AND NOT EXISTS (SELECT FROM {{outbox_queue}} q WHERE q.shard = p.shard AND q.id = p.id OFFSET 0)` + "`" + `

// removeOld removes the parked events that the subquery "old" names.
const removeOld = ` + "`" + `, parked AS (
    DELETE FROM {{outbox_parked}} p USING old o WHERE p.id = o.id AND p.state IN ('discarded', 'cancelled') RETURNING p.id`,
		New: "const unclaimed = `p.parked_at < statement_timestamp() - $1::bigint * interval '1 us'`" + `

const removeOld = ` + "`" + `, parked AS (
    DELETE FROM {{outbox_parked}} p USING old o WHERE p.id = o.id RETURNING p.id`,
		Test: Test{"store/postgres", "TestProducerContract/janitor/event that is not delivered stays, however old"},
	},
	{
		Name: "payload-in-a-panic", Guarantee: "G5",
		Broken: "The value of a publisher's panic, which may be the message, is put into the error.",
		File:   "producer/relay/batch_sender.go",
		Old:    `publisher panicked with a %T", v)`,
		New:    `publisher panicked with %v", v)`,
		Test:   Test{"producer/relay", "TestAPublisherThatPanicsRefuses"},
	},
	{
		Name: "error-that-cannot-be-stored", Guarantee: "G5",
		Broken: "An error text that no database keeps makes parking the event fail for ever.",
		File:   "internal/text/text.go",
		Old:    `strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")`,
		New:    `s, "\x00", "\x00")`,
		Test:   Test{"producer/relay/internal/core", "TestStoredErrorsAreShortAndValid"},
	},
	{
		Name: "key-behind-others-read-for-ever", Guarantee: "G5",
		Broken: "A key with millions of events of other keys in between is read by one statement, which never ends in time.",
		File:   "producer/relay/internal/core/reader.go",
		Old: `		rd.leaveToLap(l)
		return`,
		New: `		rd.refill(l)
		return`,
		Test: Test{"producer/relay/internal/core", "TestKeyWithMillionsOfOthersInBetweenIsReadByALap"},
	},
	{
		Name: "all-shards-healed-at-once", Guarantee: "G2",
		Broken: "Shards with too many parked keys for one statement are healed by one statement, which never ends in time.",
		File:   "producer/relay/internal/core/parking.go",
		Old:    `		if len(cl.shards) == pk.healing.now {`,
		New:    `		if len(cl.shards) == pk.healing.most {`,
		Test:   Test{"producer/relay/internal/core", "TestShardsAreHealedFewAtATimeWhereAllTakeTooLong"},
	},
	{
		Name: "fail-over-owes-no-mark", Guarantee: "G8",
		Broken: "What the relay sent of the lost state of a database is sent again without a mark, and without a word in the log.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `	abrupt = g.Abrupt || ls.abrupt&(1<<g.Shard) != 0`,
		New:    `	abrupt = g.Abrupt`,
		Test:   Test{"producer/relay/internal/core", "TestShardsAreTakenOverAfterAFailOver"},
	},
	{
		Name: "fail-over-remembered-for-ever", Guarantee: "G8",
		Broken: "After a fail-over, each shard that is given back in order is told to be that of a crashed relay.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `	ls.abrupt &^= 1 << g.Shard`,
		New:    ``,
		Test:   Test{"producer/relay/internal/core", "TestShardsAreTakenOverAfterAFailOver"},
	},
}
