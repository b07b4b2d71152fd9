package mutants

// storing is about messages that are stored first, and run from the database.
var storing = []Mutant{
	{
		Name: "stored-without-run", Guarantee: "G5",
		Broken: "Messages are stored and acknowledged in a process that handles none of them, and nobody is told.",
		File:   "consumer/stored.go",
		Old: `			i.reportNotRunning(ctx)
			return ErrNotRunning`,
		New:  `			return nil`,
		Test: Test{"consumer", "TestNothingIsStoredWithoutRun"},
	},
	{
		Name: "stored-without-order", Guarantee: "G4",
		Broken: "Stored messages of a key run at the same time.",
		File:   "consumer/stored.go",
		Old:    `	p.Ordered = h.cfg.Order.ByKey && p.Message.Key != ""`,
		New:    `	p.Ordered = false`,
		Test:   Test{"consumer", "TestStoredMessagesOfAKeyRunInOrderThroughFailures"},
	},
	{
		Name: "stored-unknown-commit-is-applied", Guarantee: "G3",
		Broken: "A message whose storing had an unknown outcome counts as applied before it runs.",
		File:   "consumer/delivery.go",
		Old:    `		if d.commitUnknown && h.cfg.StoreFirst {`,
		New:    `		if d.commitUnknown && h.cfg.Optimistic {`,
		Test:   Test{"consumer", "TestStoringWithALostAnswerIsAskedForAgain"},
	},
	{
		Name: "backlog-of-suspects", Guarantee: "G5",
		Broken: "Each start of a backlog that a process finds is recorded.",
		File:   "consumer/config.go",
		Old:    `	leftoverShare         = 16`,
		New:    `	leftoverShare         = 1 << 10`,
		Test:   Test{"consumer", "TestBacklogIsReadAhead"},
	},
	{
		Name: "due-asked-for-each", Guarantee: "G5",
		Broken: "Each handled message of a backlog costs a query for what is due.",
		File:   "consumer/config.go",
		Old:    `	dueAhead              = 8`,
		New:    `	dueAhead              = 0`,
		Test:   Test{"consumer", "TestBacklogIsReadAhead"},
	},
	{
		Name: "message-of-another-process-waits", Guarantee: "G5",
		Broken: "A message whose row is locked for a moment waits for PollInterval.",
		File:   "consumer/config.go",
		Old:    `	firstSkip             = 50 * time.Millisecond`,
		New:    `	firstSkip             = time.Hour`,
		Test:   Test{"consumer", "TestMessageOfAnotherProcessIsTriedAgainSoon"},
	},
	{
		Name: "fresh-waits-for-key", Guarantee: "G5",
		Broken: "A message is not stored while the handler of another message of its key runs.",
		File:   "store/postgres/inbox_park.go",
		Old:    `p.Ordered && p.State == inbox.Retrying && !p.Fresh {`,
		New:    `p.Ordered && p.State == inbox.Retrying {`,
		Test:   Test{"store/postgres", "TestConsumerContract/fresh/fresh message does not wait for a handler of its key"},
	},
	{
		Name: "fresh-follows-nothing", Guarantee: "G2",
		Broken: "A message without a live message of its key before it follows, and is never due.",
		File:   "store/postgres/inbox_park.go",
		Old:    `SELECT EXISTS (SELECT FROM ahead) AS follows`,
		New:    `SELECT $7 AND ($13 OR EXISTS (SELECT FROM ahead)) AS follows`,
		Test:   Test{"store/postgres", "TestConsumerContract/fresh/fresh message is kept whole, claimed and due"},
	},
	{
		Name: "fresh-never-follows", Guarantee: "G5",
		Broken: "All stored messages of a key are due, and a look for what is due passes over each of them.",
		File:   "store/postgres/inbox_park.go",
		Old:    `SELECT EXISTS (SELECT FROM ahead) AS follows`,
		New:    `SELECT EXISTS (SELECT FROM ahead WHERE false) AS follows`,
		Test:   Test{"store/postgres", "TestBacklogOfStoredMessagesIsReadByItsKeys"},
	},
	{
		Name: "fresh-too-old-is-kept", Guarantee: "G8",
		Broken: "A stored message that is too old is kept as another one that the consumer does not know of.",
		File:   "store/internal/sqlstore/inbox_park.go",
		Old: `		if row.fresh {
			return verdict, nil
		}
		row.State = inbox.TooOldState`,
		New:  `		row.State = inbox.TooOldState`,
		Test: Test{"store/sqlite", "TestConsumerContract/fresh/fresh message that is known, too old or altered is not kept"},
	},
}
