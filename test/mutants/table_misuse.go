package mutants

var misuse = []Mutant{
	{
		Name: "handler-commits", Guarantee: "G3",
		Broken: "A handler commits the transaction of its claim: its events, and its neighbours in a group, are lost.",
		File:   "store/postgres/guard.go",
		Old: `	if t.sp == nil || t.owned {
		return t.guard.violate(sqlstore.Refused("Commit"))
	}
	if _, err`,
		New: `	if t.sp == nil {
		tx, err := t.guard.tx.begun(ctx)
		return errors.Join(err, tx.Commit(ctx))
	}
	if _, err`,
		Test: Test{"store/postgres", "TestMisuseContract/handler in a group/commits"},
	},
	{
		Name: "handler-commits-by-sql", Guarantee: "G3",
		Broken: "A COMMIT among the statements of a handler is sent.",
		File:   "store/postgres/guard.go",
		Old:    `	case r.Ends != "":`,
		New:    `	case r.Ends == "never":`,
		Test:   Test{"store/postgres", "TestMisuseContract/handler in a group/commits by SQL"},
	},
	{
		Name: "another-transaction-passes", Guarantee: "G3",
		Broken: "A transaction begun after a COMMIT on the connection itself passes for the claim's transaction.",
		File:   "store/postgres/guard.go",
		Old:    `		if now != begin {`,
		New:    `		if now < begin {`,
		Test:   Test{"store/postgres", "TestMisuseContract/handler alone/rolls back and begins anew past the store"},
	},
	{
		Name: "rows-left-open-are-the-databases-trouble", Guarantee: "G5",
		Broken: "A handler that leaves rows open counts no attempt, for ever.",
		File:   "store/postgres/guard.go",
		Old:    `	case conn.PgConn().IsBusy():`,
		New:    `	case conn.PgConn().IsBusy() && exposed:`,
		Test:   Test{"store/postgres", "TestMisuseContract/handler alone/leaves rows open"},
	},
	{
		Name: "guard-lets-anybody-commit", Guarantee: "G3",
		Broken: "On SQLite and MySQL a handler commits the transaction of its claim.",
		File:   "store/internal/sqlstore/owned.go",
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
		Old: `		if d.txEnded {
			return h.parkEndedTx(ctx, d)
		}`,
		New:  ``,
		Test: Test{"store/postgres", "TestMisuseContract/handler in a group/commits past the store"},
	},
	{
		Name: "first-consumer-is-not-warned", Guarantee: "G4",
		Broken: "Only the last process that shares a queue is told that the keys have lost their order.",
		File:   "transport/amqp/consumers.go",
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
	{
		Name: "settings-outlast-their-transaction", Guarantee: "G5",
		Broken: "A handler on PostgreSQL changes settings, the role or the search path of a connection, which the pool hands out again.",
		File:   "store/postgres/guard.go",
		Old:    `	case r.Stays(sql):`,
		New:    `	case r.Stays(sql) && r.Ends != "":`,
		Test:   Test{"store/postgres", "TestMisuseContract/handler alone/changes a setting for the session"},
	},
	{
		Name: "changed-session-goes-back-to-the-pool", Guarantee: "G5",
		Broken: "A connection to SQLite with a setting changed by a handler is used by other handlers.",
		File:   "store/sqlite/guard.go",
		Old:    `	return !c.changed && c.inner.IsValid()`,
		New:    `	return c.inner.IsValid()`,
		Test:   Test{"store/sqlite", "TestMisuseContract/handler alone/changes a setting for the session"},
	},
	{
		Name: "store-writes-into-another-database", Guarantee: "G1",
		Broken: "A handler on MySQL says USE, and its events go to the outbox of the other database.",
		File:   "store/internal/sqlstore/owned.go",
		Old:    `		return o.blame(ErrElsewhere)`,
		New:    `		_ = ErrElsewhere`,
		Test:   Test{"store/mysql", "TestMisuseContract/handler of Transact/looks for names elsewhere in the session"},
	},
	{
		Name: "nested-message-waits-for-itself", Guarantee: "G5",
		Broken: "A handler on SQLite that waits for the handling of another message holds the write lock until Config.MaxHold is over.",
		File:   "consumer/handler.go",
		Old:    `	if errors.Is(err, inbox.ErrNested) {`,
		New:    `	if false && errors.Is(err, inbox.ErrNested) {`,
		Test:   Test{"store/sqlite", "TestMessageWithinAHandlerIsRefusedAtOnce"},
	},
	{
		Name: "identity-outlives-its-key", Guarantee: "G1",
		Broken: "A request under a key that is forgotten has a second effect, and no event.",
		File:   "middleware/idempotent/requests.go",
		Old:    `+" "+strconv.FormatInt(now.came, 10), now.id.Key`,
		New:    `+strconv.Itoa(0), now.id.Key`,
		Test:   Test{"middleware/idempotent", "TestKeyThatIsForgottenMakesANewRequest"},
	},
	{
		Name: "refusal-commits", Guarantee: "G1",
		Broken: "The changes of a handler that refuses its request are committed.",
		File:   "middleware/idempotent/requests.go",
		Old:    `	case status >= http.StatusBadRequest && !q.cfg.KeepRefused:`,
		New:    `	case status >= http.StatusInternalServerError && !q.cfg.KeepRefused:`,
		Test:   Test{"middleware/idempotent", "TestRefusalIsFinalForItsKeyAndChangesNothing"},
	},
	{
		Name: "ordered-by-another-key", Guarantee: "G4",
		Broken: "An ordered handler accepts messages that its subscriber orders by another key, and runs them out of order.",
		File:   "consumer/handler.go",
		Old:    `h.cfg.Order.ByKey && in.event.Key != "" && key != in.event.Key {`,
		New:    `h.cfg.Order.ByKey && in.event.Key == "" && key != in.event.Key {`,
		Test:   Test{"consumer", "TestOrderedHandlerRefusesMessagesThatAreOrderedByAnotherKey"},
	},
	{
		Name: "group-waits-for-a-hung-one", Guarantee: "G5",
		Broken: "Messages that do not fill a group wait for a message whose handler hangs.",
		File:   "consumer/config.go",
		Old:    `groupPatience         = 500 * time.Millisecond`,
		New:    `groupPatience         = time.Hour`,
		Test:   Test{"consumer", "TestHungMemberOfAGroupDoesNotHoldUpTheNextGroup"},
	},
	{
		Name: "changed-payload-parked", Guarantee: "G3",
		Broken: "A retry sees the payload as changed by the earlier attempt, and the changed payload is parked.",
		File:   "consumer/incoming.go",
		Old:    `slices.Clone(in.event.Payload))`,
		New:    `slices.Clip(in.event.Payload))`,
		Test:   Test{"consumer", "TestWhatAHandlerDoesToThePayloadIsNotParked"},
	},
	{
		Name: "known-result-thrown-away", Guarantee: "G3",
		Broken: "The result of an effect outside the database is given up when the database is away for longer than Config.MaxHold.",
		File:   "consumer/effects/run.go",
		Old:    `		if o.Result == nil || pace.Sleep(`,
		New:    `		if o.Result != nil || pace.Sleep(`,
		Test:   Test{"consumer/effects", "TestResultOfAnEffectIsKeptThroughALongOutage"},
	},
	{
		Name: "redriven-effect-stays-uncertain", Guarantee: "G8",
		Broken: "A redriven effect waits for an operator again at its first failed call.",
		File:   "consumer/effects/run.go",
		Old:    `before = r.Uncertain && x.again`,
		New:    `before = r.Uncertain`,
		Test:   Test{"consumer/effects", "TestEffectThatWasRedrivenAndNotCarriedOutIsTriedAgain"},
	},
	{
		Name: "unreadable-message-stops-its-consumer", Guarantee: "G5",
		Broken: "One unreadable parked row keeps all other rows of its consumer from being retried.",
		File:   "store/internal/sqlstore/inbox_parked.go",
		Old: `	m.Metadata, m.Unreadable = decodeMetadata(metadata)
`,
		New: `	if m.Metadata, err = decodeMetadata(metadata); err != nil {
		return m, err
	}
`,
		Test: Test{"consumer", "TestUnreadableParkedMessageIsDeadAndStopsNoOther"},
	},
	{
		Name: "stand-still-taken-for-a-clock-jump", Guarantee: "G8",
		Broken: "A consumer that stood still for longer than MaxClockStep never forgets an ID again.",
		File:   "consumer/forget.go",
		Old:    `max(passed, cfg.MaxClockStep))`,
		New: `cfg.MaxClockStep)
		_ = passed`,
		Test: Test{"consumer", "TestServiceThatStoodStillForgetsAgain"},
	},
	{
		Name: "slash-in-a-service", Guarantee: "G7",
		Broken: "Two consumers whose service and handler names join to one name share their claims.",
		File:   "consumer/config.go",
		Old:    `	if strings.Contains(c.Service, "/") {`,
		New:    `	if strings.Contains(c.Service, "//") {`,
		Test:   Test{"consumer", "TestBadConfigurationIsRefusedWithAllOfItsProblems"},
	},
	{
		Name: "unreadable-event-sent", Guarantee: "G2",
		Broken: "An event with an unreadable part is sent without the part.",
		File:   "producer/relay/send.go",
		Old:    `	if err := readable(e); err != nil {`,
		New:    `	if err := readable(e); err != nil && e.Redelivered {`,
		Test:   Test{"producer/relay", "TestEventThatCannotBeReadIsBuriedInsteadOfSent"},
	},
	{
		Name: "text-for-a-number-stops-its-shard", Guarantee: "G5",
		Broken: "One event on SQLite with a text in a column of numbers keeps its shard from being read.",
		File:   "store/internal/sqlstore/outbox_queue.go",
		Old: `	n.bad = n.NullInt64.Scan(src) != nil
	return nil
`,
		New: `	return n.NullInt64.Scan(src)
`,
		Test: Test{"store/sqlite", "TestEventThatCannotBeReadKeepsNoOtherFromBeingRead"},
	},
	{
		Name: "nobody-runs-the-inbox", Guarantee: "G7",
		Broken: "Messages are parked in a process that never retries them, without a warning.",
		File:   "consumer/inbox.go",
		Old:    `	if i.runCalled.Load() || i.cfg.RunElsewhere`,
		New:    `	if !i.runCalled.Load() || i.cfg.RunElsewhere`,
		Test:   Test{"consumer", "TestParkingWithoutRunIsAnError"},
	},
	{
		Name: "renamed-handler-unnoticed", Guarantee: "G8",
		Broken: "Parked messages of a renamed handler wait for ever, without a warning.",
		File:   "consumer/inbox.go",
		Old:    `	if len(names) > 0 {`,
		New:    `	if len(names) > 100 {`,
		Test:   Test{"consumer", "TestParkedMessagesOfARenamedHandlerAreReported"},
	},
	{
		Name: "equal-messages-are-one", Guarantee: "G3",
		Broken: "Equal unreadable messages without a dispatch ID pass for duplicates of the first.",
		File:   "consumer/incoming.go",
		Old:    `		if msg.UUID == "" && !transport.Redelivered(msg) {`,
		New:    `		if msg.UUID == "" && transport.Redelivered(msg) {`,
		Test:   Test{"consumer", "TestEqualMessagesWithoutADispatchIDAreAllKept"},
	},
	{
		Name: "failed-statement-is-to-be-repeated", Guarantee: "G7",
		Broken: "A client is told to repeat a request whose handler ignores a failed statement at every run.",
		File:   "middleware/idempotent/requests.go",
		Old:    `	case ctx.Err() == nil && q.handlers(err):`,
		New:    `	case ctx.Err() != nil && q.handlers(err):`,
		Test:   Test{"middleware/idempotent", "TestHandlerThatGoesOnAfterAFailedStatementIsNotToldToRepeat"},
	},
	{
		Name: "unanswered-request-is-in-progress", Guarantee: "G7",
		Broken: "On MySQL and SQLite a request whose handler has committed the claim is answered as still being handled.",
		File:   "store/internal/sqlstore/inbox_requests.go",
		Old:    `		return nil, fmt.Errorf("read answer: %w", inbox.ErrUnanswered)`,
		New:    `		return nil, fmt.Errorf("read answer: %w", inbox.ErrInProgress)`,
		Test:   Test{"store/sqlite", "TestRequestContract/claim that is committed without an answer is told"},
	},
	{
		Name: "request-does-not-say-what-its-handler-did", Guarantee: "G7",
		Broken: "The log of a request whose handler has committed its claim does not name the mistake.",
		File:   "middleware/idempotent/requests.go",
		Old: `		unknown = err
`,
		New: `		_ = err
`,
		Test: Test{"store/postgres", "TestMisuseContract/handler of an idempotent request/commits past the store"},
	},
	{
		Name: "setting-hides-a-commit", Guarantee: "G3",
		Broken: "A handler on MariaDB that runs a definition under SET STATEMENT commits its claim without an error.",
		File:   "store/internal/sqlstore/misuse.go",
		Old:    `s.is("STATEMENT") {`,
		New:    `s.is("STATEMENTS") {`,
		Test:   Test{"store/mysql", "TestMisuseContract/handler alone/drops a table under a setting for that"},
	},
	{
		Name: "definition-commits", Guarantee: "G3",
		Broken: "A handler on MySQL commits its claim by a definition, or by another statement for which MySQL commits.",
		File:   "store/internal/sqlstore/misuse.go",
		Old:    `	case s.d.Implicit && s.commits():`,
		New:    `	case s.d.Dollars && s.commits():`,
		Test:   Test{"store/mysql", "TestMisuseContract/handler in a group/drops a table"},
	},
}
