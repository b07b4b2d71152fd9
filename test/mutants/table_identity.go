package mutants

// identity is about dispatch IDs, digests and shards.
var identity = []Mutant{
	{
		Name: "ambiguous-names", Guarantee: "G6",
		Broken: "The parts of a dispatch ID are joined without their lengths.",
		File:   "idgen/idgen.go",
		Old: `func appendString(dst []byte, s string) []byte {
	dst = strconv.AppendInt(dst, int64(len(s)), 10)
	dst = append(dst, ':')
`,
		New: `func appendString(dst []byte, s string) []byte {
`,
		Test: Test{"idgen", "TestIDsThatLookAlikeDiffer"},
	},
	{
		Name: "producer-not-in-the-id", Guarantee: "G3",
		Broken: "Two services with a source of the same name give different events the same dispatch ID.",
		File:   "idgen/idgen.go",
		Old: `	name := appendString(buf[:0], kindOf)
	name = appendString(name, producer)
`,
		New: `	name := appendString(buf[:0], kindOf)
`,
		Test: Test{"idgen", "TestIDsThatLookAlikeDiffer"},
	},
	{
		Name: "shard-hash-changed", Guarantee: "G4",
		Broken: "A key's shard differs from the version before, so two shards hold events of one key.",
		File:   "idgen/idgen.go",
		Old:    `int(sum[0]) % Shards`,
		New:    `int(sum[1]) % Shards`,
		Test:   Test{"idgen", "TestFormatOneNeverChanges"},
	},
	{
		Name: "shard-by-id", Guarantee: "G4",
		Broken: "Events of one key are spread over shards, and so over relays.",
		File:   "idgen/idgen.go",
		Old:    `	if key == "" {`,
		New:    `	if key != "\x00" {`,
		Test:   Test{"idgen", "TestEventsOfAKeyShareAShardWhateverTheirIDs"},
	},
	{
		Name: "source-alone-is-an-identity", Guarantee: "G7",
		Broken: "An event with a source and no version is accepted, and the next event of the source counts as a copy.",
		File:   "producer/writer.go",
		Old:    `	if version < 1 {`,
		New:    `	if version < 0 {`,
		Test:   Test{"producer", "TestASourceAloneIsNoIdentity"},
	},
	{
		Name: "sql-writer-takes-a-source-alone", Guarantee: "G7",
		Broken: "For the writer in SQL all events of a source without a version are one event.",
		File:   "migrations/postgres/0012_write_versions.sql",
		Old:    `idempotency_key = '' AND version < 1`,
		New:    `idempotency_key = '' AND version < 0`,
		Test:   Test{"store/postgres", "TestSQLWriterChecksWhatItIsGiven"},
	},
	{
		Name: "digest-without-headers", Guarantee: "G6",
		Broken: "The digest of an event leaves its headers out, so changed headers pass for the same event.",
		File:   "transport/digest.go",
		Old:    `		part(e.Headers[name])`,
		New:    `		part("")`,
		Test:   Test{"transport", "TestDigestDependsOnContentOnly"},
	},
	{
		Name: "stamp-of-the-copy", Guarantee: "G8",
		Broken: "Each copy of an event carries the time of its sending instead of one stamp.",
		File:   "store/postgres/queue.go",
		Old:    `coalesce(greatest(e.created_at, e.due_at), 'epoch'),`,
		New:    `clock_timestamp(),`,
		Test:   Test{"store/postgres", "TestProducerContract/append/stamp is the time of writing and the same in every copy"},
	},
	{
		Name: "row-with-what-another-had", Guarantee: "G2",
		Broken: "A fetched row without headers or digest gets those of the row before it.",
		File:   "store/postgres/queue.go",
		Old:    `	*q = outbox.Queued{} // headers`,
		New:    `	// headers`,
		Test:   Test{"store/postgres", "TestProducerContract/append/event comes back as it was written"},
	},
	{
		Name: "foreign-text-is-an-id", Guarantee: "G8",
		Broken: "Any text in which a UUID can be found is taken for a dispatch ID.",
		File:   "transport/event.go",
		Old:    `err != nil || len(msg.UUID) != 36 || id == uuid.Nil`,
		New:    `err != nil || id == uuid.Nil`,
		Test:   Test{"transport", "TestOnlyTheTextFormOfAUUIDIsADispatchID"},
	},
}
