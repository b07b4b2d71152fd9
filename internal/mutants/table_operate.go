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
}
