package mutants

// witnessing is about relays that end before their leases do.
var witnessing = []Mutant{
	{
		Name: "ended-witness-not-heeded", Guarantee: "G4",
		Broken: "A relay that lost its witness goes on sending while others may take its shards over.",
		File:   "producer/relay/internal/core/witness.go",
		Old:    `		if sh != nil && w.doubts(sh) {`,
		New:    `		if false && w.doubts(sh) {`,
		Test:   Test{"producer/relay/internal/core", "TestNothingIsSentWhileAnEndedWitnessIsRecorded"},
	},
	{
		Name: "doubtful-lease-renewed", Guarantee: "G4",
		Broken: "A renewal lets a relay send whose ended witness is recorded.",
		File:   "producer/relay/internal/core/witness.go",
		Old:    `	return !w.doubts(sh) && (`,
		New:    `	return (`,
		Test:   Test{"producer/relay/internal/core", "TestNothingIsSentWhileAnEndedWitnessIsRecorded"},
	},
	{
		Name: "no-grace-after-a-witness", Guarantee: "G4",
		Broken: "The leases of a relay are ended before it can know that its witness has ended.",
		File:   "producer/relay/internal/core/witness.go",
		Old:    `w.ended[witness] + witnessGrace`,
		New:    `w.ended[witness]`,
		Test:   Test{"producer/relay/internal/core", "TestRelayThatLosesItsWitnessInTimeKeepsItsShards"},
	},
	{
		Name: "failed-record-of-a-witness-forgotten", Guarantee: "G4",
		Broken: "A witness counts as not recorded if the answer to its statement was lost.",
		File:   "producer/relay/internal/core/witness.go",
		Old: `			sh.recorded = w.own
`,
		New:  ``,
		Test: Test{"producer/relay/internal/core", "TestWitnessOfAStatementThatFailedMayBeRecorded"},
	},
	{
		Name: "one-look-at-witnesses", Guarantee: "G5",
		Broken: "A relay that dies just after a look is taken over at the next heartbeat only.",
		File:   "producer/relay/internal/core/witness.go",
		Old:    `			w.looks = 2`,
		New:    `			w.looks = 1`,
		Test:   Test{"producer/relay/internal/core", "TestRelayThatDiesAfterALookIsTakenOverAtOnce"},
	},
	{
		Name: "looks-without-pause", Guarantee: "G5",
		Broken: "Relays look at witnesses at each commit to a shard of others.",
		File:   "producer/relay/internal/core/witness.go",
		Old:    `	case w.now < w.lookAt:`,
		New:    `	case false:`,
		Test:   Test{"producer/relay/internal/core", "TestIdleRelaysSeldomLookAtWitnesses"},
	},
	{
		Name: "each-relay-looks-at-witnesses", Guarantee: "G5",
		Broken: "Sixteen relays look at witnesses eight times as often as two.",
		File:   "producer/relay/internal/core/witness.go",
		Old:    `lookInterval*time.Duration(w.others())`,
		New:    `lookInterval`,
		Test:   Test{"producer/relay/internal/core", "TestManyRelaysLookAtWitnessesAsOftenAsFew"},
	},
	{
		Name: "all-relays-look-at-once", Guarantee: "G5",
		Broken: "A commit makes all other relays look at witnesses at the same time.",
		File:   "producer/relay/internal/core/witness.go",
		Old:    `w.now+w.turn(lookInterval)`,
		New:    `w.now`,
		Test:   Test{"producer/relay/internal/core", "TestManyRelaysLookAtWitnessesAsOftenAsFew"},
	},
	{
		Name: "ended-witness-recorded", Guarantee: "G4",
		Broken: "A late statement records a witness that has ended, and a relay that goes on is taken for dead.",
		File:   "store/postgres/witness.go",
		Old:    ` AND NOT pg_try_advisory_xact_lock_shared($4)`,
		New:    ``,
		Test:   Test{"store/postgres", "TestEndedWitnessIsNotRecorded"},
	},
	{
		Name: "witness-of-an-earlier-owner", Guarantee: "G4",
		Broken: "The witness of an earlier owner ends the lease of a relay without one.",
		File:   "store/postgres/witness.go",
		Old:    `    WHERE owner IS NOT NULL AND witness_epoch = epoch AND witness = ANY`,
		New:    `    WHERE owner IS NOT NULL AND witness = ANY`,
		Test:   Test{"store/postgres", "TestLeasesOfAnEndedWitnessCanBeTakenOver"},
	},
	{
		Name: "strangers-attest", Guarantee: "G4",
		Broken: "A relay records its witness with the leases of another.",
		File:   "store/postgres/witness.go",
		Old:    `    WHERE s.owner = $1 AND s.epoch = l.epoch`,
		New:    `    WHERE (s.owner = $1 OR s.epoch > 0)`,
		Test:   Test{"store/postgres", "TestRelayAttestsOnlyItsOwnLeases"},
	},
	{
		Name: "ended-relay-visible", Guarantee: "G5",
		Broken: "A relay that has ended keeps its share of the shards until it is invisible.",
		File:   "store/postgres/witness.go",
		Old:    `    WHERE id IN (SELECT owner FROM ended)`,
		New:    `    WHERE false AND id IN (SELECT owner FROM ended)`,
		Test:   Test{"store/postgres", "TestLeasesOfAnEndedWitnessCanBeTakenOver"},
	},
	{
		Name: "witness-behind-a-pooler", Guarantee: "G4",
		Broken: "A session of a pooler is taken for one that ends with its client.",
		File:   "store/postgres/witness.go",
		Old:    `	if session != conn.PgConn().PID() {`,
		New:    `	if session == 0 {`,
		Test:   Test{"store/postgres", "TestThereIsNoWitnessBehindAPooler"},
	},
	{
		Name: "pooler-not-bypassed", Guarantee: "G5",
		Broken: "A relay listens through the pooler, though it was told how to reach the server.",
		File:   "store/postgres/config.go",
		Old:    `	if cfg.Direct == nil {`,
		New:    `	if true {`,
		Test:   Test{"store/postgres", "TestRelayListensPastAPooler"},
	},
	{
		Name: "standstill-unnoticed-before-a-send", Guarantee: "G4",
		Broken: "A process that stood still while its session ended sends an event before it hears of the end.",
		File:   "producer/relay/send.go",
		Old:    ` || l.still.doubtful(now) {`,
		New:    ` {`,
		Test:   Test{"producer/relay", "TestNothingIsSentBeforeTheCoreKnowsThatTheProcessStoodStill"},
	},
	{
		Name: "standstill-kept-from-the-core", Guarantee: "G4",
		Broken: "The core goes on with leases from before a standstill.",
		File:   "producer/relay/loop.go",
		Old: ` { // before what has come in meanwhile
		c.Suspended(now)`,
		New: ` {
		c.Overdue(now, 0)`,
		Test: Test{"producer/relay", "TestNothingIsSentBeforeTheCoreKnowsThatTheProcessStoodStill"},
	},
	{
		Name: "renewal-of-before-a-standstill", Guarantee: "G4",
		Broken: "A renewal that was executed before a standstill vouches for the lease behind it.",
		File:   "producer/relay/internal/core/witness.go",
		Old:    `issued >= w.stoodAt)`,
		New:    `issued >= 0)`,
		Test:   Test{"producer/relay/internal/core", "TestNothingIsSentAfterAStandstillBeforeARenewal"},
	},
	{
		Name: "standstill-without-a-renewal", Guarantee: "G4",
		Broken: "A relay that stood still while its session ended keeps its shards until the next renewal.",
		File:   "producer/relay/internal/core/witness.go",
		Old: `			w.leases.renewAt = 0
		}
	}
}`,
		New: `		}
	}
}`,
		Test: Test{"producer/relay/internal/core", "TestShardsAreLostWhoseSessionEndedInAStandstill"},
	},
}
