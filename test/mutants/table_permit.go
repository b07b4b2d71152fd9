package mutants

// permitting is about messages that wait while their consumer is paused or its rate is limited, and
// about observers.
var permitting = []Mutant{
	{
		Name: "end-of-a-pause-is-seen-late", Guarantee: "G5",
		Broken: "A waiting message that looks while another reads the pauses waits for another turn.",
		File:   "consumer/pauses.go",
		Old:    `		if age < pausesOld && len(latest.found) == 0 {`,
		New:    `		if age < pausesOld {`,
		Test:   Test{"consumer", "TestParkedMessagesWaitForTheEndOfAPause"},
	},
	{
		Name: "pause-ignored", Guarantee: "G5",
		Broken: "A paused consumer handles messages.",
		File:   "consumer/pauses.go",
		Old:    `		if read.found[n].Consumes(pm.name) {`,
		New:    `		if read.found[n].Consumes(pm.name) && read.found[n].Since.IsZero() {`,
		Test:   Test{"consumer", "TestPausedConsumerHandlesNothingAndGoesOnWithinASecond"},
	},
	{
		Name: "pause-read-once", Guarantee: "G5",
		Broken: "Pauses are read once: an operator cannot pause a running consumer.",
		File:   "consumer/pauses.go",
		Old:    `	if age < pausesFresh {`,
		New:    `	if age < pausesFresh || latest != nil {`,
		Test:   Test{"consumer", "TestPauseIsSeenWithinASecondWhileThereIsWork"},
	},
	{
		Name: "pause-holds-no-parked-message", Guarantee: "G5",
		Broken: "A paused consumer handles parked messages.",
		File:   "consumer/parked.go",
		Old:    `	if err := h.permits.permit(ctx, &m.progress); err != nil {`,
		New:    `	if err := ctx.Err(); err != nil {`,
		Test:   Test{"consumer", "TestParkedMessagesWaitForTheEndOfAPause"},
	},
	{
		Name: "pause-waits-in-run-once", Guarantee: "G5",
		Broken: "RunOnce handles parked messages of a paused consumer, or waits for the end of the pause.",
		File:   "consumer/parked.go",
		Old:    `			if rt.permits.isPaused(ctx) {`,
		New:    `			if ctx.Err() != nil {`,
		Test:   Test{"consumer", "TestParkedMessagesWaitForTheEndOfAPause"},
	},
	{
		Name: "group-begins-in-a-pause", Guarantee: "G5",
		Broken: "A group that has waited for another group begins although the consumer has been paused meanwhile.",
		File:   "consumer/group.go",
		Old:    `	if g.h.permits.isPaused(group[0].ctx) {`,
		New:    `	if group[0].ctx == nil {`,
		Test:   Test{"consumer", "TestGroupThatHasWaitedDoesNotBeginInAPause"},
	},
	{
		Name: "effect-begins-in-a-pause", Guarantee: "G5",
		Broken: "A paused consumer carries out effects.",
		File:   "consumer/extension.go",
		Old:    `{ return e.h.permits.isPaused(ctx) }`,
		New:    `{ return ctx == nil }`,
		Test:   Test{"consumer/effects", "TestPausedConsumerTakesUpNoEffect"},
	},
	{
		Name: "pause-holds-for-ever", Guarantee: "G5",
		Broken: "A message of a paused consumer never goes back to the transport, which ends the connection.",
		File:   "consumer/pauses.go",
		Old: `		if left <= 0 {
			return fmt.Errorf("%w: %s", ErrPaused, pause)`,
		New: `		if left = max(left, pauseCheck); left <= 0 {
			return fmt.Errorf("%w: %s", ErrPaused, pause)`,
		Test: Test{"consumer", "TestPauseBeginsBetweenTwoAttempts"}, Hang: true,
	},
	{
		Name: "paused-messages-are-refused", Guarantee: "G5",
		Broken: "A paused consumer sets aside messages without a valid dispatch ID or signature, while an operator mends the configuration.",
		File:   "consumer/handler.go",
		Old:    `		if err := h.permits.resumed(ctx, &d.progress); err != nil {`,
		New:    `		if err := ctx.Err(); err != nil {`,
		Test:   Test{"consumer", "TestPauseHoldsRefusedMessagesToo"},
	},
	{
		Name: "unknown-commit-waits-for-a-pause", Guarantee: "G3",
		Broken: "A message whose commit may have happened is returned in a pause, and what is known of the commit is lost.",
		File:   "consumer/pauses.go",
		Old:    `	if p.commitUnknown || p.txEnded {`,
		New:    `	if p.txEnded {`,
		Test:   Test{"consumer", "TestPauseDoesNotHoldAMessageWithAnUnknownCommit"},
	},
	{
		Name: "unread-pauses-are-over", Guarantee: "G5",
		Broken: "A paused consumer goes on when the pauses cannot be read.",
		File:   "consumer/pauses.go",
		Old:    `		*next = *latest`,
		New:    `		next.at = latest.at`,
		Test:   Test{"consumer", "TestPausesThatCannotBeReadRemainAndBlockNothing"},
	},
	{
		Name: "each-message-reads-pauses", Guarantee: "G5",
		Broken: "Every message costs a read of the pauses.",
		File:   "consumer/pauses.go",
		Old:    `	pausesFresh = 500 * time.Millisecond`,
		New:    `	pausesFresh = 5 * time.Millisecond`,
		Test:   Test{"consumer", "TestBusyHandlersReadPausesTogetherTwiceASecond"},
	},
	{
		Name: "limit-of-each-process", Guarantee: "G5",
		Broken: "Each run of a handler takes its tokens from the process for ever, beyond what the shared bucket has granted.",
		File:   "consumer/limit.go",
		Old:    `			l.tokens--`,
		New:    `			_ = l`,
		Test:   Test{"consumer", "TestMessageWaitsForTheLimitForMaxHold"},
	},
	{
		Name: "tokens-do-not-expire", Guarantee: "G5",
		Broken: "Tokens of an earlier time let a burst pass that the bucket does not know of.",
		File:   "consumer/limit.go",
		Old:    `		if l.tokens > 0 && now.Before(l.until) {`,
		New:    `		if l.tokens > 0 {`,
		Test:   Test{"consumer", "TestUnusedTokensExpire"},
	},
	{
		Name: "limit-asks-for-each-message", Guarantee: "G5",
		Broken: "A handler with a limit asks the database for each of its messages.",
		File:   "consumer/limit.go",
		Old:    `		l.want *= 2`,
		New:    `		l.want = 1`,
		Test:   Test{"consumer", "TestHandlerBelowItsLimitHardlyAsks"},
	},
	{
		Name: "end-of-a-pause-is-a-burst", Guarantee: "G5",
		Broken: "Messages that wait for the end of a pause gather tokens meanwhile, and are all handled at once.",
		File:   "consumer/pauses.go",
		Old: `		if err := pm.resumed(ctx, p); err != nil || pm.cfg.MaxPerSecond == 0 {
			return err
		}
		if err := pm.takeToken(ctx, p); err != nil {
			return err
		}`,
		New: `		if pm.cfg.MaxPerSecond == 0 {
			return pm.resumed(ctx, p)
		}
		if err := pm.takeToken(ctx, p); err != nil {
			return err
		}
		if err := pm.resumed(ctx, p); err != nil {
			return err
		}`,
		Test: Test{"consumer", "TestEndOfAPauseIsNoBurst"},
	},
	{
		Name: "limit-holds-no-group", Guarantee: "G5",
		Broken: "Members of a group need no token.",
		File:   "consumer/group.go",
		Old:    `	if err := h.permits.permit(m.ctx, &m.d.progress); err != nil {`,
		New:    `	if err := h.permits.resumed(m.ctx, &m.d.progress); err != nil {`,
		Test:   Test{"consumer", "TestEveryMemberOfAGroupNeedsAToken"},
	},
	{
		Name: "negative-limit-taken", Guarantee: "G7",
		Broken: "A limit that is no number is taken.",
		File:   "consumer/config.go",
		Old:    `c.MaxPerSecond > maxRate || math.IsNaN(c.MaxPerSecond)`,
		New:    `c.MaxPerSecond > maxRate || math.IsNaN(0)`,
		Test:   Test{"consumer", "TestBadLimitsAreRefused"},
	},
	{
		Name: "death-of-a-parked-message-untold", Guarantee: "G5",
		Broken: "An observer is not told that a parked message became dead.",
		File:   "consumer/parked.go",
		Old:    `	h.notifyState(in, &inbox.Parking{State: state,`,
		New:    `	h.notifyState(in, &inbox.Parking{State: inbox.Retrying,`,
		Test:   Test{"consumer", "TestObserverIsToldOfParkedAndDeadMessages"},
	},
	{
		Name: "observer-beside-no-work", Guarantee: "G5",
		Broken: "A slow observer holds up messages.",
		File:   "consumer/observer.go",
		Old: `		State:         p.State, Attempts: p.Attempts, RetryIn: p.RetryIn, Error: p.LastError,
	}
	h.inbox.notices.Put(func() { call(n) })`,
		New: `		State:         p.State, Attempts: p.Attempts, RetryIn: p.RetryIn, Error: p.LastError,
	}
	func() {
		defer func() { _ = recover() }()
		call(n)
	}()`,
		Test: Test{"consumer", "TestObserverThatPanicsOrIsSlowHoldsUpNoMessage"},
	},
	{
		Name: "stall-never-over", Guarantee: "G5",
		Broken: "An observer is not told that the database works again.",
		File:   "consumer/observer.go",
		Old:    `	h.stall.Store(true)`,
		New:    `	h.stall.Store(false)`,
		Test:   Test{"consumer", "TestObserverIsToldOfAStalledDatabaseOnceAMinute"},
	},
}
