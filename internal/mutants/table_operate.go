package mutants

// operating is about what an operator meets.
var operating = []Mutant{
	{
		Name: "slow-fetch-asks-for-as-much", Guarantee: "G5",
		Broken: "A fetch that took too long is followed by one of the same size, which takes as long.",
		File:   "producer/relay_budget.go",
		Old:    `		b.now = max(1, b.now/budgetCut)`,
		New:    `		b.now = max(budgetCut, b.now)`,
		Test:   Test{"producer", "TestFetchThatTakesTooLongIsFollowedBySmallerOnes"},
	},
	{
		Name: "stopped-replay-halts-relays", Guarantee: "G5",
		Broken: "A replay or a janitor that is stopped keeps the shards of all relays locked until it is woken.",
		File:   "store/postgres/janitor.go",
		Old:    `set_config('idle_in_transaction_session_timeout', '2s', true), `,
		New:    ``,
		Test:   Test{"store/postgres", "TestReplayThatIsStoppedHoldsUpNoRelay"},
	},
	{
		Name: "large-events-fill-the-memory", Guarantee: "G5",
		Broken: "A relay keeps as many large events in memory as small ones.",
		File:   "producer/relay_budget.go",
		Old:    `average*float64(most) > float64(c.cfg.WindowBytes)`,
		New:    `average < 0`,
		Test:   Test{"producer", "TestLargeEventsAreReadFewAtATime"},
	},
	{
		Name: "deadlocked-migration-fails", Guarantee: "G5",
		Broken: "A migration that ends in a deadlock with a writer is not begun again.",
		File:   "store/postgres/migrate.go",
		Old:    `		case sqlState(err) != "40P01":`,
		New:    `		case sqlState(err) != "40P02":`,
		Test:   Test{"store/postgres", "TestMigrateBeginsAgainAfterADeadlock"},
	},
	{
		Name: "missing-migrations-pass", Guarantee: "G7",
		Broken: "Tables that lack migrations pass for those of this version.",
		File:   "migrations/migrations.go",
		Old:    `	case len(pending) == 0:`,
		New:    `	case len(pending) >= 0:`,
		Test:   Test{"store/mysql", "TestSchemaIsChecked"},
	},
	{
		Name: "all-is-a-hundred", Guarantee: "G7",
		Broken: "The command changes one batch of what is selected, and leaves the rest.",
		File:   "cmd/boxpair/deadletters.go",
		Old:    `for len(ids) < len(all) && failed == nil { //`,
		New:    `for len(ids) == 0 && failed == nil { //`,
		Test:   Test{"cmd/boxpair", "TestAllThatIsSelectedIsChangedInBatches"},
	},
	{
		Name: "no-relay-is-healthy", Guarantee: "G7",
		Broken: "An outbox that no relay looks after is healthy.",
		File:   "health/health.go",
		Old:    `		r.add(false, "no relay runs")`,
		New:    ``,
		Test:   Test{"health", "TestOutboxIsAsItsWorstNumber"},
	},
}
