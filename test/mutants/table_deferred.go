package mutants

// deferring is about deferred events.
var deferring = []Mutant{
	{
		Name: "sent-and-still-deferred", Guarantee: "G2",
		Broken: "A deferred event is sent without having been moved, so a cancel that says yes comes too late.",
		File:   "store/postgres/deferred.go",
		Old: `    DELETE FROM {{outbox_deferred}} d
    WHERE d.id = ANY (ARRAY(SELECT due.id FROM due JOIN fence f ON f.shard = due.shard))
    RETURNING d.shard, d.id`,
		New: `    SELECT d.shard, d.id FROM {{outbox_deferred}} d
    WHERE d.id = ANY (ARRAY(SELECT due.id FROM due JOIN fence f ON f.shard = due.shard))`,
		Test: Test{pg, outboxC + "deferred/moved event can neither be cancelled nor rescheduled"},
	},
	{
		Name: "cancel-says-yes", Guarantee: "G2",
		Broken: "A cancel names events that were sent already.",
		File:   "store/postgres/deferred.go",
		Old:    `SELECT dispatch_id FROM gone ORDER BY id`,
		New:    `SELECT dispatch_id FROM {{outbox_events}} WHERE dispatch_id = ANY ($1::uuid[])`,
		Test:   Test{pg, outboxC + "deferred/moved event can neither be cancelled nor rescheduled"},
	},
	{
		Name: "move-without-a-fence", Guarantee: "G2",
		Broken: "A relay that has lost a shard moves its deferred events.",
		File:   "store/postgres/deferred.go",
		Old:    `WHERE s.owner = $1 AND s.epoch = l.epoch AND s.shard IN (SELECT shard FROM due)`,
		New:    `WHERE $1 <> '' AND s.shard IN (SELECT shard FROM due)`,
		Test:   Test{pg, outboxC + "deferred/events of a lost shard are not moved"},
	},
	{
		Name: "sql-writer-sends-at-once", Guarantee: "G2",
		Broken: "The writer in SQL queues a deferred event as well.",
		File:   "migrations/postgres/0012_write_versions.sql",
		Old:    `SELECT w.shard, w.id FROM written w WHERE w.due_at IS NULL`,
		New:    `SELECT w.shard, w.id FROM written w`,
		Test:   Test{pg, "TestEventDeferredInSQLIsCancelledAndMovedInGo"},
	},
	{
		Name: "migration-loses-grants", Guarantee: "G7",
		Broken: "The migration that gives the writer in SQL a parameter leaves its roles without it.",
		File:   "migrations/postgres/0006_write_deferred.sql",
		Old:    `AND before.pronargs = 17`,
		New:    `AND before.pronargs = 0`,
		Test:   Test{pg, "TestMigrationOfTheSQLWriterKeepsItsGrants"},
	},
	{
		Name: "due-by-the-relays-clock", Guarantee: "G2",
		Broken: "A relay waits by its own clock for the next due event, and does not see the database's jump.",
		File:   "producer/relay/internal/core/deferred.go",
		Old:    `	df.next = min(df.now+pause, df.due)`,
		New: `	if df.next = df.due; next == 0 {
		df.next = df.now + pause
	}`,
		Test: Test{core, "TestTheDatabasesClockDecidesWhatIsDue"},
	},
	{
		Name: "move-is-not-looked-for", Guarantee: "G2",
		Broken: "Moved events stand below the low-water mark, where no relay reads for minutes.",
		File:   "producer/relay/internal/core/deferred.go",
		Old:    `			sh.want(m.Seq)`,
		New:    `			sh.more = true // and looks for nothing below the mark`,
		Test:   Test{core, "TestDeferredEventIsSentWhenItIsDue"},
	},
	{
		Name: "deferred-taken-for-delivered", Guarantee: "G2",
		Broken: "A deferred event is neither queued nor parked, and so replayed as a delivered one.",
		File:   "store/postgres/replay.go",
		Old: `      AND NOT EXISTS (SELECT FROM {{outbox_deferred}} d WHERE d.id = e.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM {{outbox_queue}} q WHERE q.shard = e.shard AND q.id = e.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM {{outbox_parked}} p WHERE p.id = e.id OFFSET 0)
    ORDER BY e.id LIMIT $7`,
		New: `      AND NOT EXISTS (SELECT FROM {{outbox_queue}} q WHERE q.shard = e.shard AND q.id = e.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM {{outbox_parked}} p WHERE p.id = e.id OFFSET 0)
    ORDER BY e.id LIMIT $7`,
		Test: Test{pg, outboxC + "deferred/deferred event is neither replayed nor removed"},
	},
	{
		Name: "head-that-was-sent", Guarantee: "G4",
		Broken: "A relay takes a sent event for the head of its key, and does not see a due event before the next.",
		File:   "producer/relay/internal/core/parked.go",
		Old: `		l.head = l.parked[0].Seq
`,
		New:  ``,
		Test: Test{core, "TestDueEventOfAKeyThatWaitsGoesInFront"},
	},
}
