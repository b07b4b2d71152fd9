package mutants

// calling is about effects outside the database.
var calling = []Mutant{
	{
		Name: "effect-key-not-stable", Guarantee: "G6",
		Broken: "Each attempt of an effect outside the database has another idempotency key.",
		File:   "consumer/effects/run.go",
		Old:    `			if result, err = x.do(ctx, r.Key, r.Intent); err != nil {`,
		New:    `			if result, err = x.do(ctx, uuid.New(), r.Intent); err != nil {`,
		Test:   Test{"consumer/effects", "TestEffectKeyIsStable"},
	},
	{
		Name: "effect-within-the-transaction", Guarantee: "G1",
		Broken: "The call of an effect is made before its intent is committed, within the transaction of the claim.",
		File:   "consumer/effects/run.go",
		Old:    `	e, h := w.Event(), x.host`,
		New: `	e, h := w.Event(), x.host
	_, _ = x.do(ctx, Key(h.Name(), e.ID), b)`,
		Test: Test{"consumer/effects", "TestCallIsMadeOutsideAnyTransaction"},
	},
	{
		Name: "unanswered-effect-taken-for-done", Guarantee: "G3",
		Broken: "An effect whose call gave no answer is finished as if it had been carried out.",
		File:   "consumer/effects/run.go",
		Old: `		x.failed(ctx, r, err)
		return`,
		New:  `		result = []byte("{}")`,
		Test: Test{"consumer/effects", "TestFateOfErrorsOfDo"},
	},
	{
		Name: "uncertain-effect-asked-for-again", Guarantee: "G3",
		Broken: "An uncertain effect is called again, though the other side would carry the effect out twice.",
		File:   "store/postgres/inbox_effects.go",
		Old:    `WHEN $2 AND b.attempts < $3 THEN 'pending'`,
		New:    `WHEN ($2 OR true) AND b.attempts < $3 THEN 'pending'`,
		Test:   Test{"store/postgres", "TestEffectContract/result that comes late settles what is uncertain"},
	},
	{
		Name: "zombie-finishes-an-effect", Guarantee: "G3",
		Broken: "A process whose lease of an effect was taken over finishes the effect beside the new owner.",
		File:   "store/postgres/inbox_effects.go",
		Old:    `WHERE id = $1 AND run = $2 AND state IN ('doing', 'uncertain') FOR UPDATE`,
		New:    `WHERE id = $1 AND $2::bigint >= 0 AND state IN ('doing', 'uncertain') FOR UPDATE`,
		Test:   Test{"store/postgres", "TestEffectContract/earlier run changes nothing"},
	},
	{
		Name: "effects-of-a-key-overtake", Guarantee: "G4",
		Broken: "An effect is begun while an earlier effect of its key is not done.",
		File:   "store/postgres/inbox_effects.go",
		Old: `e.due_at <= clock_timestamp() AND ` + "` + isFirstEffect + `" + `
    ORDER BY e.due_at, e.id LIMIT $2`,
		New: `e.due_at <= clock_timestamp()
    ORDER BY e.due_at, e.id LIMIT $2`,
		Test: Test{"store/postgres", "TestEffectContract/effects of a key come one after another, in order"},
	},
}
