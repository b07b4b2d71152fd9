package mutants

var misuse = []Mutant{
	{
		Name: "handler-commits", Guarantee: "G3",
		Broken: "A handler commits the transaction of its claim: its events, and its neighbours in a group, are lost.",
		File:   "store/postgres/handed.go",
		Old: `	if t.at == nil || t.kept {
		return t.h.blame(sqlstore.Refused("Commit"))
	}
	if _, err`,
		New: `	if t.at == nil {
		tx, err := t.h.of.begun(ctx)
		return errors.Join(err, tx.Commit(ctx))
	}
	if _, err`,
		Test: Test{"store/postgres", "TestMisuseContract/handler in a group/commits"},
	},
	{
		Name: "handler-commits-by-sql", Guarantee: "G3",
		Broken: "A COMMIT among the statements of a handler is sent.",
		File:   "store/postgres/handed.go",
		Old:    `	case r.Ends != "":`,
		New:    `	case r.Ends == "never":`,
		Test:   Test{"store/postgres", "TestMisuseContract/handler in a group/commits by SQL"},
	},
	{
		Name: "another-transaction-passes", Guarantee: "G3",
		Broken: "A transaction that was begun behind a COMMIT on the connection itself passes for that of the claim.",
		File:   "store/postgres/handed.go",
		Old:    `		if now != start {`,
		New:    `		if now < start {`,
		Test:   Test{"store/postgres", "TestMisuseContract/handler alone/rolls back and begins anew past the store"},
	},
	{
		Name: "rows-left-open-are-the-databases-trouble", Guarantee: "G5",
		Broken: "A handler that leaves rows open counts no attempt, for ever.",
		File:   "store/postgres/handed.go",
		Old:    `	case conn.PgConn().IsBusy():`,
		New:    `	case conn.PgConn().IsBusy() && lent:`,
		Test:   Test{"store/postgres", "TestMisuseContract/handler alone/leaves rows open"},
	},
	{
		Name: "guard-lets-anybody-commit", Guarantee: "G3",
		Broken: "On SQLite and MySQL a handler commits the transaction of its claim.",
		File:   "internal/sqlstore/owned.go",
		Old: `	if o.ending {
		return nil
	}
	return o.blame(Refused("Commit"))`,
		New:  `	return nil`,
		Test: Test{"store/sqlite", "TestMisuseContract/handler in a group/commits"},
	},
	{
		Name: "claim-that-a-handler-committed-is-acknowledged", Guarantee: "G3",
		Broken: "A message whose claim was committed by another handler of its group passes for applied.",
		File:   "consumer/delivery.go",
		Old: `		if d.ended {
			return h.parkEnded(ctx, d)
		}`,
		New:  ``,
		Test: Test{"store/postgres", "TestMisuseContract/handler in a group/commits past the store"},
	},
	{
		Name: "first-consumer-is-not-warned", Guarantee: "G4",
		Broken: "Only the last process that shares a queue is told that the keys have lost their order.",
		File:   "transport/amqp/others.go",
		Old:    "		case <-tick.C:\n",
		New:    "",
		Test:   Test{"transport/amqp", "TestConsumersOfOneQueueAreAllWarned"},
	},
	{
		Name: "message-twice-is-two-events", Guarantee: "G6",
		Broken: "A message that is published twice in one transaction is two events.",
		File:   "producer/publisher.go",
		Old:    `"message", msg.UUID, true`,
		New:    `"message", msg.UUID, false`,
		Test:   Test{"producer", "TestMessagePublishedTwiceInOneTransactionIsOneEvent"},
	},
}
