package mutants

// claiming is about the claim of a message in the consumer's database.
var claiming = []Mutant{
	{
		Name: "no-dedupe", Guarantee: "G3",
		Broken: "Every copy of a message is new.",
		File:   "store/postgres/inbox_claim.go",
		Old:    "AS settings\nON CONFLICT DO NOTHING`",
		New:    "AS settings\nON CONFLICT (consumer, dispatch_id) DO UPDATE SET digest = excluded.digest`",
		Test:   Test{"store/postgres", "TestConsumerContract/claim/message is applied once and its copies are duplicates"},
	},
	{
		Name: "no-dedupe-of-ordered-messages", Guarantee: "G3",
		Broken: "Every copy of a message with an order is new.",
		File:   "store/postgres/inbox_claim.go",
		Old:    "THEN clock_timestamp() END)\nON CONFLICT DO NOTHING`",
		New:    "THEN clock_timestamp() END)\nON CONFLICT (consumer, dispatch_id) DO UPDATE SET digest = excluded.digest`",
		Test:   Test{"store/postgres", "TestClaimWorksInEveryQueryMode"},
	},
	{
		Name: "sqlite-no-dedupe", Guarantee: "G3",
		Broken: "Every copy of a message is new on SQLite.",
		File:   "store/sqlite/inbox.go",
		Old:    `ON CONFLICT (consumer, dispatch_id) DO NOTHING`,
		New:    `ON CONFLICT (consumer, dispatch_id) DO UPDATE SET digest = excluded.digest`,
		Test:   Test{"store/sqlite", "TestConsumerContract/claim/message is applied once and its copies are duplicates"},
	},
	{
		Name: "mysql-no-dedupe", Guarantee: "G3",
		Broken: "Every copy of a message is new on MySQL.",
		File:   "store/mysql/inbox.go",
		Old:    `	if n == int64(len(claims)) {`,
		New:    `	if n > 0 {`,
		Test:   Test{"store/mysql", "TestConsumerContract/claim/message is applied once and its copies are duplicates"},
	},
	{
		Name: "claim-outside-the-transaction", Guarantee: "G3",
		Broken: "The claim is committed before the handler runs, so a failure of the handler loses the message.",
		File:   "store/postgres/inbox_claim.go",
		Old:    `	if err := t.run(ctx, func(tx pgx.Tx) error { return fn(ctx, tx) }); err != nil {`,
		New: `	b := t.batch()
	b.Queue("commit")
	b.Queue("begin")
	if err := t.sendOwn(ctx, "commit the claim", b); err != nil {
		return inbox.None, err
	}
	if err := t.run(ctx, func(tx pgx.Tx) error { return fn(ctx, tx) }); err != nil {`,
		Test: Test{"store/postgres", "TestConsumerContract/claim/failed handler leaves nothing behind, and its error comes back as it is"},
	},
	{
		Name: "claim-without-consumer", Guarantee: "G3",
		Broken: "Two consumers of one database share their claims, so that only one consumer runs.",
		File:   "store/postgres/inbox_claim.go",
		Old:    `SELECT $3::smallint, $4::uuid`,
		New:    `SELECT least($3::smallint, 1), $4::uuid`,
		Test:   Test{"store/postgres", "TestConsumerContract/claim/two consumers with the same IDs do not disturb each other"},
	},
	{
		Name: "altered-content-acknowledged", Guarantee: "G3",
		Broken: "Another message under a known dispatch ID passes for a duplicate.",
		File:   "store/postgres/inbox_claim.go",
		Old:    `	case !digest.Matches(digestOf(known)):`,
		New:    `	case known == nil && !digest.Matches(digestOf(known)):`,
		Test:   Test{"store/postgres", "TestConsumerContract/claim/copy with other content is altered and not run"},
	},
	{
		Name: "swallowed-error-is-success", Guarantee: "G3",
		Broken: "A COMMIT that the database answers with ROLLBACK, since the handler swallowed an error, is taken for a commit.",
		File:   "store/postgres/inbox.go",
		Old:    `		return fmt.Errorf("commit: %w", inbox.ErrRolledBack)`,
		New:    `		return nil`,
		Test:   Test{"store/postgres", "TestConsumerContract/claim/swallowed error of a statement is not taken for success"},
	},
	{
		Name: "unknown-commit-is-success", Guarantee: "G2",
		Broken: "A COMMIT whose answer was lost counts as committed, and the message is acknowledged.",
		File:   "store/postgres/inbox.go",
		Old:    `	return fmt.Errorf("commit: %w: %w", inbox.ErrCommitUnknown, err)`,
		New:    `	return nil`,
		Test:   Test{"store/postgres", "TestCommitThatNeverArrivedIsUnknownAndTheMessageRunsAgain"},
	},
	{
		Name: "unknown-commit-is-the-handlers-error", Guarantee: "G3",
		Broken: "A COMMIT whose answer was lost counts as failed.",
		File:   "store/postgres/inbox.go",
		Old:    `	return fmt.Errorf("commit: %w: %w", inbox.ErrCommitUnknown, err)`,
		New:    `	return fmt.Errorf("commit: %w", err)`,
		Test:   Test{"store/postgres", "TestCommitWhoseReplyIsLostIsUnknownAndACopyTells"},
	},
	{
		Name: "key-not-locked", Guarantee: "G4",
		Broken: "Messages of one key are handled at once in two processes.",
		File:   "store/postgres/inbox_claim.go",
		Old:    `	if key != "" {` + "\n" + `		o.keys`,
		New:    `	if key == "\x00" {` + "\n" + `		o.keys`,
		Test:   Test{"store/postgres", "TestConsumerContract/order/newcomer that waits while its predecessor is parked follows it"},
	},
	{
		Name: "parked-predecessor-ignored", Guarantee: "G4",
		Broken: "A message is handled although an earlier one of its key is parked.",
		File:   "store/postgres/inbox_claim.go",
		Old:    `       $3 <> '' AND EXISTS (`,
		New:    `       $3 = 'none' AND EXISTS (`,
		Test:   Test{"store/postgres", "TestConsumerContract/order/message follows a parked one of its key, whole and with its claim"},
	},
	{
		Name: "settings-leak-into-the-handler", Guarantee: "G3",
		Broken: "The lock timeout of the claim stays in force for the handler's own statements.",
		File:   "store/postgres/inbox.go",
		Old:    "restoreLockTimeout = `set_config('lock_timeout', current_setting('boxpair.lock_timeout'), true)`",
		New:    "restoreLockTimeout = `current_setting('lock_timeout')`",
		Test:   Test{"store/postgres", "TestHandlerRunsUnderTheSettingsOfTheSession"},
	},
	{
		Name: "stopped-handler-keeps-its-claim", Guarantee: "G5",
		Broken: "A process that is stopped in a handler keeps its claim, and the copies wait, for ever.",
		File:   "store/postgres/inbox.go",
		Old:    `           coalesce($2::text, current_setting('idle_in_transaction_session_timeout')), true)`,
		New:    `           left(coalesce($2::text, ''), 0) || current_setting('idle_in_transaction_session_timeout'), true)`,
		Test:   Test{"store/postgres", "TestIdleTimeoutFreesTheClaimOfAStuckHandler"},
		Hang:   true,
	},
	{
		Name: "sqlite-altered-content-acknowledged", Guarantee: "G3",
		Broken: "On SQLite another message under a known dispatch ID passes for a duplicate.",
		File:   "store/internal/sqlstore/inbox_parked.go",
		Old:    `		verdict = inbox.Altered` + "\n",
		New:    `		verdict = inbox.Duplicate` + "\n",
		Test:   Test{"store/sqlite", "TestConsumerContract/claim/copy with other content is altered and not run"},
	},
}

// remembering is about the window: in memory, and in the table.
var remembering = []Mutant{
	{
		Name: "window-filled-before-commit", Guarantee: "G2",
		Broken: "A dispatch ID is remembered before its handler has succeeded; after a failure the redelivery is a duplicate.",
		File:   "consumer/delivery.go",
		Old:    `	m.d.term = m.h.registry.term()`,
		New: `	m.d.term = m.h.registry.term()
	m.h.registry.remember(m.d.term, m.d.in.event.ID, m.d.in.event.Digest)`,
		Test: Test{"consumer", "TestNothingIsRememberedBeforeItsCommit"},
	},
	{
		Name: "window-without-consumer", Guarantee: "G2",
		Broken: "Two handlers of one process share a window, so that the second handler never runs.",
		File:   "consumer/inbox.go",
		Old:    `	h.suspects.returned, err = dedupe.New(returnedSize)`,
		New: `	for _, other := range i.handlers {
		h.registry.window = other.registry.window
	}
	h.suspects.returned, err = dedupe.New(returnedSize)`,
		Test: Test{"consumer", "TestTwoHandlersOfOneTopicBothRun"},
	},
	{
		Name: "window-keeps-earlier-terms", Guarantee: "G2",
		Broken: "An ID that is added late, after the window was emptied, counts as seen.",
		File:   "dedupe/window.go",
		Old:    `	case !ok || e.term != w.Term():`,
		New:    `	case !ok:`,
		Test:   Test{"dedupe", "TestForgetTurnsEverythingIntoMisses"},
	},
	{
		Name: "window-without-digest", Guarantee: "G3",
		Broken: "The window takes other content under a known dispatch ID for a duplicate.",
		File:   "dedupe/window.go",
		Old:    `	case e.digest.Matches(digest):`,
		New:    `	case e.digest.Matches(e.digest):`,
		Test:   Test{"dedupe", "TestEqualContentIsADuplicateAndOtherContentIsNot"},
	},
	{
		Name: "window-trusts-a-copy-without-digest", Guarantee: "G3",
		Broken: "A copy without a digest makes the window take an altered message for a duplicate.",
		File:   "consumer/delivery.go",
		Old:    `		if !digest.IsZero() {`,
		New:    `		if id.String() != "" {`,
		Test:   Test{"consumer", "TestCopyWithoutDigestDoesNotHideAnAlteredOne"},
	},
	{
		Name: "window-outlives-the-database", Guarantee: "G2",
		Broken: "After trouble with the database, which may have been replaced, the window still answers.",
		File:   "consumer/database.go",
		Old:    `		rg.window.Forget()`,
		New:    `		rg.window.Len()`,
		Test:   Test{"consumer", "TestWindowForgetsAfterTroubleWithTheDatabase"},
	},
	{
		Name: "other-database-unnoticed-by-inboxes", Guarantee: "G3",
		Broken: "A standby that was promoted behind a pooler is taken for the old primary.",
		File:   "consumer/database.go",
		Old:    `	if before == "" || name == "" || name == before {`,
		New:    `	if before == "" || name != "" {`,
		Test:   Test{"consumer", "TestWindowIsForgottenWhenTheDatabaseIsAnotherOne"},
	},
	{
		Name: "window-believed-unasked", Guarantee: "G3",
		Broken: "A copy counts as applied before the identity of the database is checked again.",
		File:   "consumer/registry.go",
		Old:    ` && rg.inbox.checkIdentity(ctx, identityFresh) == nil && knows()`,
		New:    ``,
		Test:   Test{"consumer", "TestWindowIsBelievedOnlyInTheDatabaseThatItIsOf"},
	},
	{
		Name: "window-believed-after-it-was-forgotten", Guarantee: "G3",
		Broken: "While one copy finds that the database was replaced, the next copy is judged by the old window.",
		File:   "consumer/registry.go",
		Old:    ` == nil && knows()`,
		New:    ` == nil`,
		Test:   Test{"consumer", "TestWindowIsBelievedOnlyInTheDatabaseThatItIsOf"},
	},
	{
		Name: "other-database-unnoticed-by-relays", Guarantee: "G2",
		Broken: "A relay that survives a fail-over goes on from its old position.",
		File:   "producer/relay/internal/core/leases.go",
		Old:    `	if before == "" {`,
		New:    `	if before == "" || identity != "" {`,
		Test:   Test{"producer/relay/internal/core", "TestWhatAFailOverBroughtBackIsSentAgainAtOnce"},
	},
	{
		Name: "standstill-ends-forgetting", Guarantee: "G8",
		Broken: "A consumer that stood still never forgets again.",
		File:   "consumer/forget.go",
		Old:    `passed := time.Since(jump.Since) + aheadTolerance`,
		New:    `passed := jump.Since.Sub(jump.Since)`,
		Test:   Test{"consumer", "TestServiceThatStoodStillForgetsAgain"},
	},
	{
		Name: "window-of-a-second", Guarantee: "G3",
		Broken: "Dispatch IDs are forgotten after a second, while copies still arrive.",
		File:   "consumer/forget.go",
		Old:    `AdvanceForgotten(ctx, fg.registry.consumer(), cfg.Window, cfg.MaxClockStep)`,
		New:    `AdvanceForgotten(ctx, fg.registry.consumer(), time.Second, cfg.MaxClockStep)`,
		Test:   Test{"consumer", "TestForgettingAdvancesFirstAndRemovesInBatches"},
	},
	{
		Name: "forgotten-time-not-read", Guarantee: "G8",
		Broken: "A message from a time that the consumer has forgotten is run as new.",
		File:   "store/postgres/inbox_claim.go",
		Old:    `SELECT coalesce($2 < forgotten_until, false), `,
		New:    `SELECT coalesce($2 < forgotten_until, false) AND false, `,
		Test:   Test{"store/postgres", "TestConsumerContract/window/message from a forgotten time is too old and not run"},
	},
	{
		Name: "forgotten-time-read-before-the-claim", Guarantee: "G8",
		Broken: "The forgetting time is read before the claim, and may move on while the claim waits.",
		File:   "store/postgres/inbox_claim.go",
		Old: `	b.Queue(t.store.sql[leanClaim], setting(c.LockTimeout), setting(c.IdleTimeout),
		c.Consumer, idValue(c.ID), digestValue(c.Digest), timeValue(c.Stamp)).
		Exec(func(tag pgconn.CommandTag) error {
			got.mine = tag.RowsAffected() == 1
			return nil
		})
	b.Queue(t.store.sql[checkLean], c.Consumer, timeValue(c.Stamp)).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&got.tooOld, nil)`,
		New: `	b.Queue("SELECT coalesce($2 < forgotten_until, false) FROM "+t.store.names.Table("inbox_consumers")+" WHERE id = $1",
		c.Consumer, timeValue(c.Stamp)).QueryRow(func(row pgx.Row) error { return row.Scan(&got.tooOld) })
	b.Queue(t.store.sql[leanClaim], setting(c.LockTimeout), setting(c.IdleTimeout),
		c.Consumer, idValue(c.ID), digestValue(c.Digest), timeValue(c.Stamp)).
		Exec(func(tag pgconn.CommandTag) error {
			got.mine = tag.RowsAffected() == 1
			return nil
		})
	b.Queue(t.store.sql[checkLean], c.Consumer, timeValue(c.Stamp)).QueryRow(func(row pgx.Row) error {
		err := row.Scan(nil, nil)`,
		Test: Test{"store/postgres", "TestCopyThatWaitsWhileWhatIsForgottenMovesOnIsTooOld"},
	},
	{
		Name: "forgotten-time-behind-a-snapshot", Guarantee: "G8",
		Broken: "Above READ COMMITTED the forgetting time is read as of the beginning of the transaction.",
		File:   "store/postgres/inbox_claim.go",
		Old:    `b.Queue(t.store.sql[shared], args...)`,
		New:    `b.Queue(t.store.sql[plain], args...)`,
		Test:   Test{"store/postgres", "TestAdvanceBehindASnapshotIsAConflict"},
	},
	{
		Name: "no-grace", Guarantee: "G3",
		Broken: "Claims are removed as soon as their time is forgotten, while a handler of such a message may still run.",
		File:   "store/postgres/inbox_window.go",
		Old:    `set_at <= clock_timestamp() - $2::bigint * interval '1 microsecond'`,
		New:    `set_at <= clock_timestamp() - 0 * $2::bigint * interval '1 microsecond'`,
		Test:   Test{"store/postgres", "TestConsumerContract/window/nothing is removed before the grace is over"},
	},
	{
		Name: "parked-ids-forgotten", Guarantee: "G3",
		Broken: "The claim of a parked message is removed, so that a copy runs as well.",
		File:   "store/postgres/inbox_window.go",
		Old:    `WHERE p.consumer = i.consumer AND p.dispatch_id = i.dispatch_id)`,
		New:    `WHERE p.consumer = i.consumer AND p.dispatch_id = i.dispatch_id AND p.id < 0)`,
		Test:   Test{"store/postgres", "TestConsumerContract/window/IDs of parked messages stay until they are applied"},
	},
	{
		Name: "clock-jump-believed", Guarantee: "G8",
		Broken: "One pass with a clock that is a year ahead forgets all dispatch IDs.",
		File:   "store/postgres/inbox_window.go",
		Old:    `interval '1 microsecond' AS jumped`,
		New:    `interval '1 microsecond' AND false AS jumped`,
		Test:   Test{"store/postgres", "TestClockThatJumpsAYearForgetsNothing"},
	},
	{
		Name: "forgotten-time-goes-back", Guarantee: "G8",
		Broken: "The forgetting time moves back, and removed dispatch IDs count as new again.",
		File:   "store/postgres/inbox_window.go",
		Old:    ` AND until > coalesce(forgotten_until, '-infinity') AS ahead`,
		New:    ` AS ahead`,
		Test:   Test{"store/postgres", "TestShorterWindowIsNoJump"},
	},
	{
		Name: "history-is-too-old", Guarantee: "G8",
		Broken: "A new consumer, which has forgotten no ID, sets history aside as too old.",
		File:   "store/postgres/inbox_window.go",
		Old:    ` AND until > registered_at AND`,
		New:    ` AND`,
		Test:   Test{"store/postgres", "TestConsumerContract/window/young consumer forgets nothing and reads history of any age"},
	},
}
