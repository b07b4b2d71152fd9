package mutants

// hoping is about claims that are sent after their handlers have run.
var hoping = []Mutant{
	{
		Name: "optimistic-copies-applied", Guarantee: "G3",
		Broken: "A claim that is sent with the COMMIT does not stop the effects of a copy.",
		File:   "store/postgres/inbox_optimistic.go",
		Old:    "FROM (SELECT ` + saveLockTimeout + `) AS settings`)",
		New:    "FROM (SELECT ` + saveLockTimeout + `) AS settings ON CONFLICT DO NOTHING`)",
		Test:   Test{"store/postgres", "TestConsumerContractOfClaimsSentWithTheCommit/claim/message is applied once and its copies are duplicates"},
	},
	{
		Name: "optimistic-too-old-applied", Guarantee: "G8",
		Broken: "A message that is too old is applied if its claim is sent with the COMMIT.",
		File:   "store/postgres/inbox_optimistic.go",
		Old:    "FROM {{inbox_consumers}} c WHERE c.id = $1 AND NOT coalesce($2 < c.forgotten_until, false)`)",
		New:    "FROM {{inbox_consumers}} c WHERE c.id = $1 AND coalesce($2 < c.forgotten_until, true)`)",
		Test:   Test{"store/postgres", "TestConsumerContractOfClaimsSentWithTheCommit/window/message from a forgotten time is too old and not run"},
	},
	{
		Name: "optimistic-passes-a-parked-message", Guarantee: "G4",
		Broken: "A message whose claim is sent with the COMMIT passes a parked message of its key.",
		File:   "store/postgres/inbox_optimistic.go",
		Old:    "p.key = $3 AND p.ordered AND p.state IN ('retrying', 'following'))`)",
		New:    "p.key = $3 AND p.ordered AND p.state IN ('dead'))`)",
		Test:   Test{"store/postgres", "TestConsumerContractOfClaimsSentWithTheCommit/order/message follows a parked one of its key, whole and with its claim"},
	},
	{
		Name: "refused-claim-goes-on", Guarantee: "G3",
		Broken: "The statements of a handler after a refused claim are committed.",
		File:   "store/postgres/inbox_optimistic.go",
		Old:    "	case l.sent && !l.got.clear():\n		return false, nil\n",
		New:    "",
		Test:   Test{"store/postgres", "TestWhatAHandlerDoesPastARefusedClaimIsRolledBack"},
	},
	{
		Name: "copy-of-an-optimistic-handler-fails", Guarantee: "G5",
		Broken: "A handler that fails for a copy, because of the first copy's changes, counts an attempt.",
		File:   "store/postgres/inbox_optimistic.go",
		Old:    "		_ = l.send(ctx) // a copy may fail on the changes of the first message\n",
		New:    "",
		Test:   Test{"store/postgres", "TestHandlerOfAnOptimisticClaimThatFailsForADuplicateCountsForNothing"},
	},
	{
		Name: "optimistic-every-time", Guarantee: "G3",
		Broken: "A message that is delivered again has its handler run before its claim.",
		File:   "consumer/delivery.go",
		Old:    `	optimistic := h.cfg.Optimistic && !d.redelivered && !d.attempted`,
		New:    `	optimistic := h.cfg.Optimistic`,
		Test:   Test{"consumer", "TestOnlyTheFirstAttemptOfAFreshDeliveryIsOptimistic"},
	},
	{
		Name: "wait-for-a-claim-blamed-on-the-handler", Guarantee: "G5",
		Broken: "A handler that has returned counts an attempt because its claim had to wait.",
		File:   "consumer/attempt.go",
		Old:    `	case !optimistic:`,
		New:    `	case a.overran || !a.overran:`,
		Test:   Test{"consumer", "TestWaitForAnOptimisticClaimCountsNoAttempt"},
	},
	{
		Name: "queued-events-go-first", Guarantee: "G4",
		Broken: "A handler's queued events are written before its queued statements, among them the lock of their key.",
		File:   "consumer/work.go",
		Old:    `	return w.writer.FlushAtCommit(ctx)`,
		New:    `	return w.writer.Flush(ctx)`,
		Test:   Test{"consumer", "TestQueuedEventsGoBehindWhatTheHandlerHasQueuedForTheCommit"},
	},
}
