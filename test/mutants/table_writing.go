package mutants

// writing is about what a producer's transaction does.
var writing = []Mutant{
	{
		Name: "outbox-outside-the-transaction", Guarantee: "G1",
		Broken: "Events are written on a connection of their own, not in the caller's transaction.",
		File:   "store/postgres/append.go",
		Old:    `	if err := exec(ctx, tx, []any{&mine, &written}, s.sql[t], append(args, s.writerVariable, writer.String())...); err != nil {`,
		New:    `	if err := s.pool.QueryRow(ctx, s.sql[t], append(args, s.writerVariable, writer.String())...).Scan(&mine, &written); err != nil {`,
		Test:   Test{"store/postgres", "TestProducerContract/append/rolled-back event is not there"},
	},
	{
		Name: "sql-writer-takes-any-content", Guarantee: "G6",
		Broken: "The writer in SQL takes a known dispatch ID for the known event, even with other content.",
		File:   "migrations/postgres/0012_write_versions.sql",
		Old:    `        EXIT WHEN there = digested;`,
		New:    `        EXIT WHEN there IS NOT NULL;`,
		Test:   Test{"store/postgres", "TestSQLWriterRefusesOtherContentAndShowsNone"},
	},
	{
		Name: "lent-transaction-ends", Guarantee: "G1",
		Broken: "The end of a lent database/sql transaction reports success, and the owner commits it later.",
		File:   "store/postgres/sqltx.go",
		Old:    `func (d *lentDriver) Commit() error { return d.guard.violate(sqlstore.Refused("Commit")) }`,
		New:    `func (d *lentDriver) Commit() error { return nil }`,
		Test:   Test{"store/postgres", "TestLentTransactionCannotBeEndedByWhoGotIt"},
	},
	{
		Name: "panic-commits", Guarantee: "G1",
		Broken: "A transaction whose function failed or panicked is committed.",
		File:   "store/postgres/tx.go",
		Old:    `	defer t.end(ctx) // also when fn panicked or called Goexit`,
		New:    `	defer func() { _, _ = t.commit(ctx, commitTimeout); t.end(ctx) }()`,
		Test:   Test{"store/postgres", "TestProducerContract/transaction/transact rolls back on an error, a panic and Goexit"},
	},
	{
		Name: "rolled-back-commit-is-success", Guarantee: "G1",
		Broken: "A COMMIT that the database answers with ROLLBACK is taken for a commit.",
		File:   "store/postgres/tx.go",
		Old:    `	case outcome == committed:`,
		New:    `	case outcome == committed, errors.Is(err, pgx.ErrTxCommitRollback):`,
		Test:   Test{"store/postgres", "TestProducerContract/transaction/swallowed conflict makes transact fail"},
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
		File:   "store/postgres/commit.go",
		Old:    `	return unknown` + "\n",
		New:    `	return rolledBack` + "\n",
		Test:   Test{"store/postgres", "TestCommitWithALostReplyIsUnknownAndMayHaveHappened"},
	},
	{
		Name: "unknown-queued-commit-is-failure", Guarantee: "G1",
		Broken: "A COMMIT that was sent with queued events, and whose answer was lost, is reported as rolled back.",
		File:   "store/postgres/commit.go",
		Old: `	err := t.send(ctx, b)
	return t.outcome(begun, err), err`,
		New: `	err := t.send(ctx, b)
	if t.outcome(begun, err) == unknown {
		return rolledBack, err
	}
	return t.outcome(begun, err), err`,
		Test: Test{"store/postgres", "TestUnknownCommitOfQueuedEventsIsTold"},
	},
	{
		Name: "connection-before-begin", Guarantee: "G1",
		Broken: "A statement on the connection of a transaction that has not begun on the server is committed by itself.",
		File:   "store/postgres/guard.go",
		Old:    `	if !t.guard.over.Load() {`,
		New:    `	if t.guard.over.Load() {`,
		Test:   Test{"store/postgres", "TestStatementOnTheConnectionItselfIsPartOfTheTransaction"},
	},
	{
		Name: "second-writer-of-queued-events", Guarantee: "G6",
		Broken: "Events of a second writer of one transaction are written with the COMMIT.",
		File:   "store/postgres/guard.go",
		Old:    `			return w.writer == writer`,
		New:    `			return true`,
		Test:   Test{"store/postgres", "TestSecondWriterFailsTheCommitOfQueuedEvents"},
	},
	{
		Name: "events-outlive-a-savepoint", Guarantee: "G1",
		Broken: "Events written after a savepoint of the caller wait for the COMMIT, although the savepoint is rolled back.",
		File:   "store/postgres/guard.go",
		Old:    `	if g.open > 0 || g.opaque || g.exposed {`,
		New:    `	if g.opaque || g.exposed {`,
		Test:   Test{"store/postgres", "TestEventsAreRolledBackWithASavepointOfTheCaller/of pgx"},
	},
	{
		Name: "events-go-with-a-later-savepoint", Guarantee: "G2",
		Broken: "Events that wait are written within a later savepoint of the caller, and rolled back with it.",
		File:   "store/postgres/guard.go",
		Old: `	waiting := g.flush
	g.flush = nil
	g.mu.Unlock()
	for _, flush := range waiting {`,
		New: `	waiting := g.flush
	g.flush = nil
	g.mu.Unlock()
	for _, flush := range waiting {
		if len(waiting) == 1 {
			break
		}`,
		Test: Test{"store/postgres", "TestEventsAreRolledBackWithASavepointOfTheCaller/of pgx"},
	},
	{
		Name: "savepoint-by-a-statement-is-not-seen", Guarantee: "G1",
		Broken: "Events written after a savepoint that was set by a statement wait for the COMMIT.",
		File:   "store/postgres/guard.go",
		Old:    `	if r.Savepoint {`,
		New:    `	if r.Savepoint && g.separate {`,
		Test:   Test{"store/postgres", "TestEventsAreRolledBackWithASavepointOfTheCaller/by a statement"},
	},
	{
		Name: "first-statement-closes-the-connection", Guarantee: "G7",
		Broken: "A first statement with an argument that cannot be encoded fails the transaction with another error than any statement.",
		File:   "store/postgres/transaction.go",
		Old:    `	if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); unsent {`,
		New:    `	if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); unsent && t.session.PgConn().TxStatus() == 'E' {`,
		Test:   Test{"store/postgres", "TestFirstStatementFailsAsByItself/an argument that cannot be encoded"},
	},
	{
		Name: "waiting-events-share-memory", Guarantee: "G6",
		Broken: "An event that waits for the COMMIT changes when the caller uses its payload again.",
		File:   "producer/writer.go",
		Old: `		r.Payload, r.Headers = bytes.Clone(r.Payload), maps.Clone(r.Headers)
	}
	observed(w.seen, records, nil)`,
		New: `	}
	observed(w.seen, records, nil)`,
		Test: Test{"producer", "TestWaitingEventsAreCopies"},
	},
	{
		Name: "unknown-commit-runs-again", Guarantee: "G1",
		Broken: "Transact repeats a transaction whose commit has an unknown outcome.",
		File:   "producer/outbox.go",
		Old:    `		if err == nil || errors.Is(err, outbox.ErrCommitUnknown) {`,
		New: `		if errors.Is(err, outbox.ErrCommitUnknown) {
			continue
		}
		if err == nil {`,
		Test: Test{"producer", "TestAnUnknownCommitIsNotRunAgain"},
	},
	{
		Name: "commit-cut-by-context", Guarantee: "G1",
		Broken: "The end of the caller's context cuts a COMMIT off.",
		File:   "store/postgres/commit.go",
		Old:    `context.WithTimeout(context.WithoutCancel(ctx), bound)`,
		New:    `context.WithTimeout(ctx, bound)`,
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
		Old:    "END = ` + token + ` AS mine",
		New:    "END <> '' AS mine",
		Test:   Test{"store/postgres", "TestProducerContract/append/second writer is refused and writes nothing"},
	},
	{
		Name: "savepoint-keeps-the-count", Guarantee: "G6",
		Broken: "A savepoint that is rolled back leaves the counter of its events where it was.",
		File:   "producer/writer.go",
		Old:    `			w.uncount(counted)` + "\n" + `			w.seen.UndoTo(seen)`,
		New:    `			_ = counted` + "\n" + `			w.seen.UndoTo(seen)`,
		Test:   Test{"producer", "TestASavepointRolledBackTakesItsCountAlong"},
	},
	{
		Name: "ids-against-the-order", Guarantee: "G4",
		Broken: "Events of one write get ids in the opposite order.",
		File:   "store/postgres/append.go",
		Old:    "manyEvents + `, writer WHERE writer.mine ORDER BY r.n`",
		New:    "manyEvents + `, writer WHERE writer.mine ORDER BY r.n DESC`",
		Test:   Test{"store/postgres", "TestProducerContract/append/many events come back as they were written, in their order"},
	},
	{
		Name: "not-so-alike", Guarantee: "G2",
		Broken: "Events of one write that differ only in their trace get the trace of the first.",
		File:   "store/postgres/append_columns.go",
		Old:    `		if values[i] != values[0] {`,
		New:    `		if i < 0 && values[i] != values[0] {`,
		Test:   Test{"store/postgres", "TestProducerContract/append/many events come back as they were written, in their order"},
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
		Old:    `		return &outbox.ConflictError{ID: conflicting(pgErr.Detail)}`,
		New:    `		return fmt.Errorf("%w: %s", outbox.ErrConflict, pgErr.Detail)`,
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
		Broken: "A user's header may have a name of the wire contract, and replace the contract's header.",
		File:   "producer/validate.go",
		Old:    `		if transport.IsReserved(name) {`,
		New:    `		if transport.IsReserved(name) && size < 0 {`,
		Test:   Test{"producer", "TestAnInvalidEventNamesTheFieldNotTheValueAndWritesNothing"},
	},
	{
		Name: "publisher-without-key", Guarantee: "G4",
		Broken: "A Watermill publisher over the outbox takes a message that nothing gives a key.",
		File:   "producer/publisher.go",
		Old:    `	case !p.cfg.NoKey:`,
		New:    `	case false:`,
		Test:   Test{"producer", "TestMessageWithoutKeyOrIdentityIsRefused"},
	},
	{
		Name: "publisher-of-two-transactions", Guarantee: "G1",
		Broken: "Messages that are published together are written in the transactions of each, not all or none.",
		File:   "producer/publisher.go",
		Old:    `w.token != writers[0].token`,
		New:    `w == nil`,
		Test:   Test{"producer", "TestMessagesOfTwoTransactionsAreNotPublishedTogether"},
	},
	{
		Name: "publisher-of-another-outbox", Guarantee: "G1",
		Broken: "A message that was refused, since its transaction is another outbox's, does not forbid the commit.",
		File:   "producer/publisher.go",
		Old:    `				t.Forbid(err)`,
		New:    `				_ = t`,
		Test:   Test{"producer", "TestMessageOfAnotherOutboxForbidsTheCommit"},
	},
	{
		Name: "publisher-beside-its-transaction", Guarantee: "G1",
		Broken: "A message that is published in a transaction is written in one of its own.",
		File:   "producer/publisher.go",
		Old:    `own = own && transactions[i] == nil`,
		New:    `own = own && i >= 0`,
		Test:   Test{"producer", "TestMessageOutsideOfATransactionIsRefused"},
	},
	{
		Name: "queue-after-the-end", Guarantee: "G2",
		Broken: "An event that is queued after the end of its transaction is lost.",
		File:   "producer/writer.go",
		Old:    `	if w.within.Ended() {`,
		New:    `	if w.outbox == nil {`,
		Test:   Test{"producer", "TestTransactionThatHasEndedTakesNoEvents"},
	},
	{
		Name: "batch-without-its-events", Guarantee: "G1",
		Broken: "A batch is committed though an event that was published in its context was refused.",
		File:   "consumer/batch.go",
		Old:    `	return t.Err()`,
		New:    `	return nil`,
		Test:   Test{"consumer", "TestEventOfABatchIsPublishedInTheContextOfItsMessage"},
	},
	{
		Name: "batch-with-some-of-its-events", Guarantee: "G1",
		Broken: "A batch is committed with some of the events that were published in one call.",
		File:   "producer/publisher.go",
		Old:    `			if begin > 0 {`,
		New:    `			if begin < 0 {`,
		Test:   Test{"consumer", "TestEventsOfABatchAreWrittenTogetherOrForbidItsCommit"},
	},
	{
		Name: "notes-of-another-process", Guarantee: "G6",
		Broken: "What another process has noted on a message decides on the identity of an event.",
		File:   "producer/describe.go",
		Old:    `transport.LocalPrefix + uuid.NewString()`,
		New:    `transport.LocalPrefix + uuid.Nil.String()[:0]`,
		Test:   Test{"producer", "TestForeignNotesAreNoIdentity"},
	},
	{
		Name: "notes-of-another-message", Guarantee: "G6",
		Broken: "A handler that passes a message on publishes it under the identity that a bus has noted on it.",
		File:   "consumer/incoming.go",
		Old:    `if !strings.HasPrefix(name, transport.LocalPrefix) {`,
		New:    `if strings.ToLower(name) != transport.LocalPrefix {`,
		Test:   Test{"middleware", "TestNotesOfAnotherMessageAreNotPassedOn"},
	},
	{
		Name: "group-publishes-as-its-first", Guarantee: "G6",
		Broken: "The events that members of a group publish through Watermill are children of the group's first message.",
		File:   "consumer/work.go",
		Old:    `			w = writer(m.d.in.event)`,
		New:    `			w = writer(members[0].d.in.event)`,
		Test:   Test{"middleware", "TestEventBusThatWasMadeOncePublishesInHandlers"},
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
		Old: `	if tx.lost != nil || !tx.doubted {
		return tx.lost
	}`,
		New: `	if !tx.doubted {
		return nil
	}`,
		Test: Test{"store/mysql", "TestTransactionThatTheServerEndedGoesOnWithNothing"},
	},
	{
		Name: "mysql-writers-do-not-take-turns", Guarantee: "G2",
		Broken: "On MySQL an event becomes visible below an event of its shard that was fetched already.",
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
	{
		Name: "wake-ups-without-a-budget", Guarantee: "G1",
		Broken: "Each commit notifies the relays of other processes, however many there are: a busy service pays a statement for each.",
		File:   "producer/outbox.go",
		Old:    `early > 0 && pace.Sleep`,
		New:    `early > time.Hour && pace.Sleep`,
		Test:   Test{"producer", "TestCommitsWakeRelaysElsewhereAtOnce"},
	},
}
