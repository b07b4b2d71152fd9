package mutants

// grouping is about messages that share a transaction.
var grouping = []Mutant{
	{
		Name: "group-claims-survive-a-failure", Guarantee: "G3",
		Broken: "The claims of a group are committed although a handler of the group has failed, so its members are lost.",
		File:   "store/postgres/inbox_group.go",
		Old:    `return fn(ctx, tx, run) }); err != nil {`,
		New: `return fn(ctx, tx, run) }); err != nil {
			_ = t.commitClaim(ctx)`,
		Test: Test{"store/postgres", "TestConsumerContract/group/failed group leaves no claim and no effect, and its error comes back as it is"},
	},
	{
		Name: "group-keeps-the-claim-of-one-too-old", Guarantee: "G8",
		Broken: "A message that is too old keeps the claim that its group has made: its copies pass for applied.",
		File:   "store/postgres/inbox_group.go",
		Old:    `	if len(old) > 0 {`,
		New:    `	if len(old) > len(g.claims) {`,
		Test:   Test{"store/postgres", "TestConsumerContract/group/claim of a member that is too old is not kept"},
	},
	{
		Name: "later-members-do-not-wait", Guarantee: "G4",
		Broken: "After a failure in a group, later messages of the key do not wait for the failed message.",
		File:   "consumer/group.go",
		Old:    `		case <-m.prev.done:`,
		New:    `		case <-time.After(0):`,
		Test:   Test{"consumer", "TestLaterMembersOfAReturnedMessageAreReturned"},
	},
	{
		Name: "unknown-commit-of-a-group-forgotten", Guarantee: "G3",
		Broken: "Members of a group whose unknown commit had happened count as suppressed copies.",
		File:   "consumer/group_run.go",
		Old:    `			m.d.commitUnknown = true`,
		New:    `			_ = m`,
		Test:   Test{"consumer", "TestUnknownCommitOfAGroupIsAskedForMemberByMember"},
	},
	{
		Name: "group-begins-before-its-starts", Guarantee: "G5",
		Broken: "A group of redelivered messages begins before their starts are recorded: a message that kills the process is never suspected.",
		File:   "consumer/group_run.go",
		Old:    `		members = g.start(members)`,
		New:    `		defer g.start(members)`,
		Test:   Test{"consumer", "TestStartsOfAGroupAreRecordedInOneStatementBeforeItBegins"},
	},
	{
		Name: "starts-of-a-group-stay", Guarantee: "G2",
		Broken: "The recorded starts of a rolled-back group stay, so its members count as guilty of later failures.",
		File:   "consumer/group_run.go",
		Old: `	h.suspects.unstart(context.Background(), back...)
	return members, o`,
		New: `	_ = back
	return members, o`,
		Test: Test{"consumer", "TestStartsOfAGroupThatCameBackAreTakenBackBeforeOthersAreLetIn"},
	},
	{
		Name: "start-outlives-its-claim", Guarantee: "G5",
		Broken: "The recorded start of a message that was applied stays: if its acknowledgement is lost, its copies are handled one by one.",
		File:   "consumer/group_run.go",
		Old:    `		claims[i].Started = m.started` + "\n",
		New:    ``,
		Test:   Test{"consumer", "TestDuplicateInAGroupKeepsNoStart"},
	},
	{
		Name: "start-is-not-forgotten-with-the-claim", Guarantee: "G5",
		Broken: "The store keeps the recorded start of an applied message: if its acknowledgement is lost, its copies are handled one by one.",
		File:   "store/postgres/inbox_claim.go",
		Old:    `	t.queue(t.store.sql[forgetStarts], consumerID, ids)` + "\n",
		New:    `	_, _ = consumerID, ids` + "\n",
		Test:   Test{"store/postgres", "TestConsumerContract/claim/what is counted of a message goes with its claim"},
	},
	{
		Name: "begun-before-stays-in-its-group", Guarantee: "G5",
		Broken: "A message whose earlier start never returned is run in a group again, and never alone.",
		File:   "consumer/group_run.go",
		Old:    `m.dismissed = m.d.suspect && !recorded || m.prev`,
		New:    `m.dismissed = m.prev`,
		Test:   Test{"consumer", "TestMemberThatWasBegunBeforeLeavesItsGroupAndRunsAlone"},
	},
}
