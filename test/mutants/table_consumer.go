package mutants

// parking is about messages that wait in the consumer's database.
var parking = []Mutant{
	{
		Name: "parked-without-claim", Guarantee: "G3",
		Broken: "A message is parked without a claim, so that a copy of it is handled as well.",
		File:   "store/postgres/inbox_park.go",
		Old: `	case inbox.Retrying, inbox.Dead:
	default:`,
		New: `	case inbox.Retrying:
		return s.setAside(ctx, &p)
	case inbox.Dead:
	default:`,
		Test: Test{"store/postgres", "TestConsumerContract/park/parked message is claimed, once"},
	},
	{
		Name: "redrive-through-the-claim", Guarantee: "G2",
		Broken: "A parked message claims its ID again when it is retried, counts as known and is removed without running.",
		File:   "store/postgres/inbox_parked.go",
		Old:    `	if !row.claimed {`,
		New:    `	if !row.claimed || row.Seq > 0 {`,
		Test:   Test{"store/postgres", "TestConsumerContract/take up/parked message is applied once and keeps its claim"},
	},
	{
		Name: "discard-deletes-the-claim", Guarantee: "G3",
		Broken: "Discarding a message deletes its claim, so that the next copy runs.",
		File:   "store/postgres/inbox_operator.go",
		Old: `    INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error) SELECT consumer, dispatch_id, 'discarded', $3 FROM r ORDER BY id
`,
		New: `    DELETE FROM {{inbox}} i USING r WHERE i.dispatch_id = r.dispatch_id
`,
		Test: Test{"store/postgres", "TestConsumerContract/operator/discarded message keeps reason and claim, and lets the next one run"},
	},
	{
		Name: "parked-row-stays", Guarantee: "G3",
		Broken: "The row of a parked message outlives its handling, and is handled again.",
		File:   "store/postgres/inbox_parked.go",
		Old:    "	deleteMessage = statement(`DELETE FROM {{inbox_parked}} WHERE id = $1`)",
		New:    "	deleteMessage = statement(`DELETE FROM {{inbox_parked}} WHERE id = $1 AND NOT claimed`)",
		Test:   Test{"store/postgres", "TestConsumerContract/take up/parked message is applied once and keeps its claim"},
	},
	{
		Name: "order-among-parked-ignored", Guarantee: "G4",
		Broken: "A parked message runs although an earlier one of its key waits.",
		File:   "store/postgres/inbox_parked.go",
		Old:    "const isFirstMessage = `(NOT p.ordered",
		New:    "const isFirstMessage = `(p.id > 0",
		Test:   Test{"store/postgres", "TestConsumerContract/take up/only the first live message of a key is due"},
	},
	{
		Name: "parked-without-the-lock-of-the-key", Guarantee: "G4",
		Broken: "A message is parked without the lock of its key, and the next message of the key passes it.",
		File:   "store/postgres/inbox_park.go",
		Old:    `	if p.Ordered && p.State == inbox.Retrying && !p.Fresh {`,
		New:    `	if p.Ordered && p.State == inbox.Dead && !p.Fresh {`,
		Test:   Test{"store/postgres", "TestParkingWaitsForTheLockOfItsKey"},
	},
	{
		Name: "next-of-the-key-forgotten", Guarantee: "G2",
		Broken: "When a parked message has been handled, the next message of its key is not woken.",
		File:   "store/postgres/inbox_parked.go",
		Old:    `	if at.key != "" {`,
		New:    `	if at.key == "\x00" {`,
		Test:   Test{"store/postgres", "TestConsumerContract/take up/messages of a key are taken up in order, and later ones become due"},
	},
	{
		Name: "taken-up-twice", Guarantee: "G3",
		Broken: "Two processes retry one parked message at once.",
		File:   "store/postgres/inbox_parked.go",
		Old:    `FOR UPDATE OF p SKIP LOCKED`,
		New:    `FOR KEY SHARE OF p SKIP LOCKED`,
		Test:   Test{"store/postgres", "TestConsumerContract/take up/message that another process has is not taken up twice"},
	},
	{
		Name: "altered-redriven-unforced", Guarantee: "G3",
		Broken: "A redrive runs a message with other content than the applied one, without -force.",
		File:   "store/postgres/inbox_operator.go",
		Old:    `	if f.Force {`,
		New:    `	if f.Force || f.Consumer == "" || true {`,
		Test:   Test{"store/postgres", "TestConsumerContract/operator/only dead, too old, forced altered and named messages are redriven"},
	},
	{
		Name: "old-attempts-stay", Guarantee: "G5",
		Broken: "A redriven message keeps its attempts, and is dead at its first failure.",
		File:   "store/postgres/inbox_operator.go",
		Old:    `attempts = 0, reason = NULL`,
		New:    `reason = NULL`,
		Test:   Test{"store/postgres", "TestConsumerContract/operator/dead message is redriven with nothing counted"},
	},
	{
		Name: "late-failure-buries", Guarantee: "G2",
		Broken: "A failure that is recorded late changes a message that an operator has dealt with meanwhile.",
		File:   "store/postgres/inbox_parked.go",
		Old: `WHERE id = $1 AND state = 'retrying' FOR UPDATE
), r AS (
    UPDATE {{inbox_parked}} p
    SET attempts = greatest(p.attempts, $2), last_error = $4,`,
		New: `WHERE id = $1 FOR UPDATE
), r AS (
    UPDATE {{inbox_parked}} p
    SET attempts = greatest(p.attempts, $2), last_error = $4,`,
		Test: Test{"store/postgres", "TestConsumerContract/take up/late failure does not change a message that is not retrying"},
	},
}

// handling is about what a consumer does with a message.
var handling = []Mutant{
	{
		Name: "ack-before-commit", Guarantee: "G2",
		Broken: "A message is acknowledged while its handler still runs.",
		File:   "consumer/handler.go",
		Old:    `	err := h.consume(msg.Context(), msg, d)`,
		New: `	var err error
	if h.registry.current.Load() != nil {
		go func() { _ = h.consume(msg.Context(), msg, &delivery{}) }()
	} else {
		err = h.consume(msg.Context(), msg, d)
	}`,
		Test: Test{"consumer", "TestNothingIsAcknowledgedWhileItsHandlerRuns"},
	},
	{
		Name: "fails-open", Guarantee: "G2",
		Broken: "While the database is ill, messages are acknowledged unhandled.",
		File:   "consumer/handler.go",
		Old:    `	if err == nil {` + "\n" + `		return nil` + "\n" + `	}` + "\n" + `	h.counts.returned.Add(1)`,
		New:    `	if err == nil || d.in != nil {` + "\n" + `		return nil` + "\n" + `	}` + "\n" + `	h.counts.returned.Add(1)`,
		Test:   Test{"consumer", "TestMessageThatCannotBeParkedIsNotAcknowledged"},
	},
	{
		Name: "panic-is-success", Guarantee: "G3",
		Broken: "A handler that panics has succeeded.",
		File:   "consumer/attempt.go",
		Old: `			err = observe.From(ctx).Returned(newPanic(v))
		}
	}()
	if err := fault`,
		New: `			_ = v
		}
	}()
	if err := fault`,
		Test: Test{"consumer", "TestPanicAndGoexitAreFailures"},
	},
	{
		Name: "goexit-is-success", Guarantee: "G3",
		Broken: "A handler that ends its goroutine has succeeded.",
		File:   "consumer/attempt.go",
		Old:    `				err = ErrGoexit`,
		New:    `				err = nil`,
		Test:   Test{"consumer", "TestPanicAndGoexitAreFailures"},
	},
	{
		Name: "cut-by-the-router", Guarantee: "G3",
		Broken: "A router that closes cuts the transactions of its handlers off.",
		File:   "consumer/inbox.go",
		Old:    `	return context.WithTimeout(context.WithoutCancel(ctx), h.cfg.Timeout)`,
		New:    `	return context.WithTimeout(ctx, h.cfg.Timeout)`,
		Test:   Test{"consumer", "TestTransactionOutlivesTheRoutersContext"},
	},
	{
		Name: "unknown-commit-counts", Guarantee: "G3",
		Broken: "An attempt whose COMMIT may have succeeded counts as failed, and is parked.",
		File:   "consumer/attempt.go",
		Old:    `		return askAgain` + "\n" + `	case Rejected(a.err)`,
		New:    `		return countAttempt` + "\n" + `	case Rejected(a.err)`,
		Test:   Test{"consumer", "TestUnknownCommitThatHappenedIsNotRunAgain"},
	},
	{
		Name: "no-id-no-problem", Guarantee: "G8",
		Broken: "A message without a dispatch ID, such as the empty one of a closed channel, reaches the handler.",
		File:   "consumer/handler.go",
		Old: `	if err != nil {
		if err := h.permits`,
		New: `	if err != nil && in == nil {
		if err := h.permits`,
		Test: Test{"consumer", "TestMessageWithoutDispatchIDNeverReachesTheHandler"},
	},
	{
		Name: "one-name-for-two-handlers", Guarantee: "G7",
		Broken: "Two handlers may have one name, and swallow each other's messages.",
		File:   "consumer/inbox.go",
		Old:    `	if _, ok := i.handlers[name]; ok {`,
		New:    `	if _, ok := i.handlers[name]; ok && name == "" {`,
		Test:   Test{"consumer", "TestTwoHandlersUnderOneNameAreRefused"},
	},
	{
		Name: "repeated-inside", Guarantee: "G3",
		Broken: "A middleware that runs the handler again within its transaction is not noticed: the effects of both runs are committed.",
		File:   "middleware/wrap.go",
		Old:    `if name := p.inside.Load(); name != nil {`,
		New:    `if name := p.inside.Load(); name != nil && msg == nil {`,
		Test:   Test{"middleware", "TestMiddlewareThatRepeatsOrHidesIsRefusedInside"},
	},
	{
		Name: "middleware-added-later", Guarantee: "G3",
		Broken: "A middleware that is added after the inbox of a router, or another handler under the name of a stopped one, is left out.",
		File:   "middleware/router.go",
		Old:    `		case h == nil || r.functions[name] != id:`,
		New:    `		case h == nil:`,
		Test:   Test{"middleware", "TestMiddlewareWithTheCodeOfAHandlerIsRefusedLater"},
	},
	{
		Name: "lossy-middleware-around", Guarantee: "G7",
		Broken: "A middleware around the inbox of a router acknowledges messages that had no effect, and the router starts.",
		File:   "middleware/around.go",
		Old:    `		case problem == "" || except[handler.String()]:`,
		New:    `		case problem == "" || except[handler.String()] || handler.String() == "":`,
		Test:   Test{"middleware", "TestMiddlewareThatLosesMessagesIsRefusedAroundAnInbox"},
	},
	{
		Name: "handler-added-later", Guarantee: "G3",
		Broken: "A handler that is added to a running router runs without an inbox.",
		File:   "middleware/router.go",
		Old:    `		case r.except[name]:`,
		New:    `		case r.except[name], h == nil && name != "":`,
		Test:   Test{"middleware", "TestHandlerThatIsAddedToARunningRouterIsRefused"},
	},
	{
		Name: "two-inboxes", Guarantee: "G3",
		Broken: "A handler with an inbox gets a second one, whose attempts count an outage of the first.",
		File:   "consumer/handler.go",
		Old:    `	if within.Handles(ctx, in.event.ID) {`,
		New:    `	if within.Handles(ctx, in.event.ID) && h == nil {`,
		Test:   Test{"middleware", "TestSecondInboxAroundAHandlerIsRefused"},
	},
	{
		Name: "topic-of-a-message-only", Guarantee: "G2",
		Broken: "A parked message that is handled before another one comes loses the messages that it returns.",
		File:   "middleware/router.go",
		Old:    `				topics[h.Key().String()] = topic.String()`,
		New:    `				topics[h.Key().String()] = ""`,
		Test:   Test{"middleware", "TestParkedMessageIsPublishedToTheTopicOfTheRouter"},
	},
	{
		Name: "messages-without-an-outbox", Guarantee: "G7",
		Broken: "Messages that a handler returns without an outbox are dropped, and its changes committed.",
		File:   "middleware/wrap.go",
		Old:    `		return fmt.Errorf("%w: set a topic for them, and consumer.WithOutbox", ErrNotCommitted)`,
		New:    `		return nil`,
		Test:   Test{"middleware", "TestReturnedMessagesWithoutAnOutboxAreRefusedAndNothingIsCommitted"},
	},
	{
		Name: "write-without-an-outbox", Guarantee: "G7",
		Broken: "A handler that ignores the error of a write without an outbox commits.",
		File:   "consumer/work.go",
		Old:    `		w.err = ErrNoOutbox`,
		New:    `		_ = w.err`,
		Test:   Test{"consumer", "TestHandlerThatWritesWithoutAnOutboxCannotCommit"},
	},
	{
		Name: "poison-without-end", Guarantee: "G5",
		Broken: "A message that fails every time is tried for ever.",
		File:   "consumer/failure.go",
		Old:    `	case step == makeDead, step == makeDeadUnrun, attempts >= h.cfg.Retry.MaxAttempts:`,
		New:    `	case step == makeDead, step == makeDeadUnrun:`,
		Test:   Test{"consumer", "TestLastAttemptIsDeadWhereverItIsMade"},
	},
	{
		Name: "killer-not-counted", Guarantee: "G5",
		Broken: "A message that kills the process is started again and again, and never counted.",
		File:   "consumer/delivery.go",
		Old:    `	if d.suspect {`,
		New:    `	if d.suspect && d.in == nil {`,
		Test:   Test{"consumer", "TestMessageThatKillsTheProcessIsDeadWithoutBeingRun"},
	},
	{
		Name: "killer-in-company", Guarantee: "G5",
		Broken: "A message that may have killed a process is started beside other messages, which count as guilty too.",
		File:   "consumer/suspect.go",
		Old:    `su.runIn(ctx, exclusive, id, within, run)`,
		New:    `su.runIn(ctx, shared, id, within, run)`,
		Test:   Test{"consumer", "TestRedeliveredMessageRunsBesideOthersFirstAndThenAlone"},
	},
	{
		Name: "start-that-came-back-convicts", Guarantee: "G5",
		Broken: "A message is dead because of the start of another process whose handler has returned meanwhile.",
		File:   "consumer/suspect.go",
		Old:    `n < recounts && errors.Is(a.err, ErrNeverCameBack)`,
		New:    `n < 0 && errors.Is(a.err, ErrNeverCameBack)`,
		Test:   Test{"consumer", "TestProcessThatComesBackMeanwhileConvictsNobody"},
	},
	{
		Name: "starts-of-all-processes", Guarantee: "G2",
		Broken: "Processes that start together count each other's starts of a parked message, which is dead before its first run.",
		File:   "consumer/suspect.go",
		Old:    `su.runIn(ctx, exclusive, id, within, run)`,
		New:    `su.runIn(ctx, exclusive, id, within*0, run)`,
		Test:   Test{"consumer", "TestProcessesThatStartTogetherConvictNobody"},
	},
	{
		Name: "backlog-of-a-start-one-by-one", Guarantee: "G5",
		Broken: "Parked messages that are due when a process begins are handled one at a time.",
		File:   "consumer/suspect.go",
		Old:    `su.runIn(ctx, shared, id, atAnyTime, run)`,
		New:    `su.runIn(ctx, exclusive, id, atAnyTime, run)`,
		Test:   Test{"consumer", "TestParkedMessagesThatAreDueAtTheStartAreHandledAsManyAtOnceAsOthers"},
	},
	{
		Name: "duplicate-keeps-its-start", Guarantee: "G5",
		Broken: "Each redelivered duplicate leaves a start behind, and its next copy is handled alone.",
		File:   "consumer/suspect.go",
		Old:    `	if a.err != nil || a.verdict != inbox.Applied {`,
		New:    `	if a.err != nil {`,
		Test:   Test{"consumer", "TestDuplicateThatIsRedeliveredIsNotRunAndKeepsNoStart"},
	},
	{
		Name: "anybody-stops-a-service", Guarantee: "G7",
		Broken: "One message without a signature keeps a service from starting for as long as it claims to be sent again.",
		File:   "consumer/horizon.go",
		Old:    ` && cfg.Verifier != nil {`,
		New:    ` {`,
		Test:   Test{"consumer", "TestMessageWithoutASignatureKeepsNoServiceFromStarting"},
	},
	{
		Name: "alone-without-bound", Guarantee: "G5",
		Broken: "A message that must run alone waits for a hung handler without end, and keeps all other messages out.",
		File:   "consumer/gate.go",
		Old:    `context.WithTimeout(ctx, most)`,
		New:    `context.WithTimeout(ctx, most+24*time.Hour)`,
		Test:   Test{"consumer", "TestHungHandlerStopsNobodyForLongerThanItsTimeout"},
	},
	{
		Name: "outage-counts", Guarantee: "G5",
		Broken: "An outage of the database counts attempts, and parks the messages in flight.",
		File:   "consumer/attempt.go",
		Old:    `	case a.ran && h.inbox.outages.blame(p.ref):`,
		New:    `	case a.ran && (h.inbox.outages.blame(p.ref) || true):`,
		Test:   Test{"consumer", "TestOutageOfTheHandlersOwnStatementsCountsNothingEither"},
	},
	{
		Name: "outage-excuses-poison", Guarantee: "G5",
		Broken: "A message whose failures look like the database's is tried for ever while others succeed.",
		File:   "consumer/attempt.go",
		Old:    `	case a.ran && h.inbox.outages.blame(p.ref):`,
		New:    `	case a.ran && h.inbox.outages.blame(p.ref) && a.overran:`,
		Test:   Test{"consumer", "TestPoisonThatLooksLikeAnOutageIsNotImmortal"},
	},
	{
		Name: "retry-storm", Guarantee: "G5",
		Broken: "While the database is in trouble a message is tried again at once.",
		File:   "consumer/handler.go",
		Old:    `	return pace.Sleep(ctx, wait) == nil` + "\n",
		New:    `	return pace.Sleep(ctx, min(wait, time.Millisecond)) == nil` + "\n",
		Test:   Test{"consumer", "TestLongOutageGivesTheMessageBackWithoutAHotLoop"},
	},
	{
		Name: "transaction-begun-again-keeps-its-events", Guarantee: "G1",
		Broken: "The messages returned by a failed attempt are published.",
		File:   "middleware/wrap.go",
		Old:    `	if err != nil {` + "\n" + `		return explain(err)`,
		New:    `	if err != nil && len(produced) == 0 {` + "\n" + `		return explain(err)`,
		Test:   Test{"middleware", "TestFailedAttemptLeavesNoMessages"},
	},
	{
		Name: "children-at-random", Guarantee: "G6",
		Broken: "A handler that runs again gives its events other dispatch IDs.",
		File:   "producer/writer.go",
		Old:    `		return idgen.Child(w.consumer, w.cause.ID, n), n, nil`,
		New:    `		return uuid.New(), n, nil`,
		Test:   Test{"consumer", "TestEventsOfAHandlerAreChildrenOfItsMessage"},
	},
}
