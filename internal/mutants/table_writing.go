package mutants

// writing is about what a producer's transaction does.
var writing = []Mutant{
	{
		Name: "outbox-outside-the-transaction", Guarantee: "G1",
		Broken: "Events are written on a connection of their own, not in the caller's transaction.",
		File:   "store/postgres/append.go",
		Old:    `	err = tx.QueryRow(ctx, s.sql[t], args...).Scan(`,
		New:    `	err = s.pool.QueryRow(ctx, s.sql[t], args...).Scan(`,
		Test:   Test{"store/postgres", "TestProducerContract/append/rolled-back event is not there"},
	},
	{
		Name: "sql-writer-takes-any-content", Guarantee: "G6",
		Broken: "The writer in SQL takes a known dispatch ID for the same event, whatever the content is.",
		File:   "migrations/postgres/0005_write.sql",
		Old:    `        EXIT WHEN there = digested;`,
		New:    `        EXIT WHEN there IS NOT NULL;`,
		Test:   Test{"store/postgres", "TestSQLWriterRefusesOtherContentAndShowsNone"},
	},
	{
		Name: "lent-transaction-ends", Guarantee: "G1",
		Broken: "Who ends a database/sql transaction that was lent is told that it worked, and its owner commits it later.",
		File:   "store/postgres/sqltx.go",
		Old: `	if c.ended {
		return errHandlerEnded
	}`,
		New:  ``,
		Test: Test{"store/postgres", "TestLentTransactionCannotBeEndedByWhoGotIt"},
	},
	{
		Name: "panic-commits", Guarantee: "G1",
		Broken: "A transaction whose function failed or panicked is committed.",
		File:   "store/postgres/tx.go",
		Old: `		if !ended { // fn failed, panicked or called Goexit
			rollback(ctx, tx)`,
		New: `		if !ended { // fn failed, panicked or called Goexit
			_ = tx.Commit(ctx)`,
		Test: Test{"store/postgres", "TestProducerContract/transaction/transact rolls back on an error, a panic and Goexit"},
	},
	{
		Name: "rolled-back-commit-is-success", Guarantee: "G1",
		Broken: "A COMMIT that the database answers with ROLLBACK is taken for a commit.",
		File:   "store/postgres/tx.go",
		Old:    `	return err == nil || refused(err), err`,
		New: `	if errors.Is(err, pgx.ErrTxCommitRollback) {
		err = nil
	}
	return err == nil || refused(err), err`,
		Test: Test{"store/postgres", "TestProducerContract/transaction/swallowed conflict makes transact fail"},
	},
	{
		Name: "swallowed-write-error", Guarantee: "G6",
		Broken: "A writer whose caller ignored the error of a write lets the transaction commit.",
		File:   "producer/writer.go",
		Old: `	w.err = err
	return err`,
		New:  `	return err`,
		Test: Test{"producer", "TestASwallowedWriteErrorIsNotCommitted"},
	},
	{
		Name: "unknown-commit-is-failure", Guarantee: "G1",
		Broken: "A COMMIT whose answer was lost is reported as rolled back.",
		File:   "store/postgres/tx.go",
		Old:    `	return err == nil || refused(err), err`,
		New:    `	return true, err`,
		Test:   Test{"store/postgres", "TestCommitWithALostReplyIsUnknownAndMayHaveHappened"},
	},
	{
		Name: "unknown-commit-runs-again", Guarantee: "G1",
		Broken: "Transact runs a transaction again of which it is not known whether it was committed.",
		File:   "producer/outbox.go",
		Old:    `		if err == nil || errors.Is(err, ErrCommitUnknown) {`,
		New: `		if errors.Is(err, ErrCommitUnknown) {
			continue
		}
		if err == nil {`,
		Test: Test{"producer", "TestAnUnknownCommitIsNotRunAgain"},
	},
	{
		Name: "commit-cut-by-context", Guarantee: "G1",
		Broken: "The end of the caller's context cuts a COMMIT off.",
		File:   "store/postgres/tx.go",
		Old:    `context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)`,
		New:    `context.WithTimeout(ctx, commitTimeout)`,
		Test:   Test{"store/postgres", "TestCommitIsNotCutOffByItsContext"},
	},
	{
		Name: "content-not-compared", Guarantee: "G6",
		Broken: "An event with a known dispatch ID and other content is dropped silently.",
		File:   "store/postgres/append.go",
		Old:    `DO UPDATE SET altered = NULL WHERE e.digest IS DISTINCT FROM excluded.digest`,
		New:    `DO NOTHING`,
		Test:   Test{"store/postgres", "TestProducerContract/append/other content under a known ID dooms the transaction"},
	},
	{
		Name: "second-writer", Guarantee: "G6",
		Broken: "Two writers of one transaction count from 0 each, so that different events get one dispatch ID.",
		File:   "store/postgres/append.go",
		Old:    `ELSE current_setting($1, true) END = $2 AS mine`,
		New:    `ELSE $2 END = $2 AS mine`,
		Test:   Test{"store/postgres", "TestProducerContract/append/second writer is refused and writes nothing"},
	},
	{
		Name: "savepoint-keeps-the-count", Guarantee: "G6",
		Broken: "A savepoint that is rolled back leaves the counter of its events where it was.",
		File:   "producer/writer.go",
		Old:    `			w.next, *w.queued, w.wrote = saved, nil, wrote`,
		New:    `			_, *w.queued, w.wrote = saved, nil, wrote`,
		Test:   Test{"producer", "TestASavepointRolledBackTakesItsCountAlong"},
	},
	{
		Name: "ids-against-the-order", Guarantee: "G4",
		Broken: "Events of one write get ids in the opposite order.",
		File:   "store/postgres/append.go",
		Old:    `    ORDER BY r.n` + "\n",
		New:    `    ORDER BY r.n DESC` + "\n",
		Test:   Test{"store/postgres", "TestProducerContract/append/IDs follow the order of the records"},
	},
	{
		Name: "key-lock-does-nothing", Guarantee: "G4",
		Broken: "Writers that lock their keys do not wait for each other.",
		File:   "store/postgres/append.go",
		Old:    `SELECT pg_advisory_xact_lock(k) FROM`,
		New:    `SELECT pg_advisory_xact_lock_shared(k) FROM`,
		Test:   Test{"store/postgres", "TestProducerContract/concurrent writers/locked key makes others wait"},
	},
	{
		Name: "conflict-shows-the-row", Guarantee: "G6",
		Broken: "The error of a conflict shows the detail of the database, which prints the row with its payload.",
		File:   "store/postgres/append.go",
		Old:    `		return producer.ErrConflict`,
		New:    `		return fmt.Errorf("%w: %s", producer.ErrConflict, pgErr.Detail)`,
		Test:   Test{"store/postgres", "TestConflictShowsNoDetail"},
	},
	{
		Name: "headers-of-any-size", Guarantee: "G5",
		Broken: "Headers that close the broker's connection are accepted into the outbox.",
		File:   "producer/validate.go",
		Old:    `	if size > c.MaxHeaders {`,
		New:    `	if size > 100*c.MaxHeaders {`,
		Test:   Test{"producer", "TestAnInvalidEventNamesTheFieldNotTheValueAndWritesNothing"},
	},
	{
		Name: "reserved-headers", Guarantee: "G3",
		Broken: "A user's header may have a name of the wire contract, and take its place.",
		File:   "producer/validate.go",
		Old:    `		if transport.IsReserved(name) {`,
		New:    `		if transport.IsReserved(name) && size < 0 {`,
		Test:   Test{"producer", "TestAnInvalidEventNamesTheFieldNotTheValueAndWritesNothing"},
	},
	{
		Name: "publisher-without-key", Guarantee: "G4",
		Broken: "A Watermill publisher over the outbox need not be told which key its messages have.",
		File:   "producer/publisher.go",
		Old:    `	if (cfg.Key == nil) == !cfg.NoKey {`,
		New:    `	if cfg.Key != nil && cfg.NoKey {`,
		Test:   Test{"producer", "TestPublisherMustBeToldKeyAndIdentity"},
	},
	{
		Name: "sqlite-content-not-compared", Guarantee: "G6",
		Broken: "On SQLite an event with a known dispatch ID and other content is dropped silently.",
		File:   "store/sqlite/append.go",
		Old:    `DO UPDATE SET digest = NULL WHERE digest IS NOT excluded.digest`,
		New:    `DO NOTHING`,
		Test:   Test{"store/sqlite", "TestConflictCannotBeSwallowedIntoACommit"},
	},
	{
		Name: "mysql-content-not-compared", Guarantee: "G6",
		Broken: "On MySQL an event with a known dispatch ID and other content is dropped silently.",
		File:   "store/mysql/append.go",
		Old:    `		case records[i].Digest != transport.Digest(digest):`,
		New:    `		case records[i].Digest != transport.Digest(digest) && rewrites == 0:`,
		Test:   Test{"store/mysql", "TestProducerContract/append/other content under a known ID dooms the transaction"},
	},
	{
		Name: "mysql-goes-on-after-a-lost-transaction", Guarantee: "G1",
		Broken: "Statements after MySQL has rolled a transaction back by itself are committed one by one.",
		File:   "store/mysql/guard.go",
		Old:    `	if c.tx.lost != nil {`,
		New:    `	if c.tx.lost == errIdle {`,
		Test:   Test{"store/mysql", "TestTransactionThatTheServerEndedGoesOnWithNothing"},
	},
	{
		Name: "mysql-writers-do-not-take-turns", Guarantee: "G2",
		Broken: "On MySQL an event becomes visible below one of its shard that was fetched already.",
		File:   "store/mysql/append.go",
		Old:    "` ORDER BY shard FOR UPDATE`",
		New:    "` ORDER BY shard`",
		Test: Test{"store/mysql", "TestProducerContract/concurrent writers/" +
			"writers of a shard take turns, so that its events become visible in the order of their IDs"},
	},
	{
		Name: "sqlite-goes-on-after-a-lost-transaction", Guarantee: "G1",
		Broken: "Statements after SQLite has rolled a transaction back by itself are committed one by one.",
		File:   "store/sqlite/guard.go",
		Old:    `	if c.tx.lost != nil {`,
		New:    `	if c.tx.lost == errIdle {`,
		Test:   Test{"store/sqlite", "TestStatementsAfterALostTransactionAreRefused"},
	},
}
