package mutants

// Hazard is a known way in which messaging libraries lose, repeat or reorder messages, or stand
// still, with the tests that show that this library does not.
type Hazard struct {
	// Text says what can go wrong, without naming a library.
	Text string
	// Tests show that the hazard is met.
	Tests []Test
}

const (
	pg      = "store/postgres"
	amqp    = "transport/amqp"
	memory  = "transport/memory"
	outbox  = "producer"
	relay   = "producer/relay"
	core    = "producer/relay/internal/core"
	inbox   = "consumer"
	chain   = "test/chain"
	outboxC = "TestProducerContract/"
	inboxC  = "TestConsumerContract/"
)

// Hazards returns all hazards, first the transport's.
func Hazards() []Hazard {
	return append(append(append([]Hazard(nil), transportHazards...), relayHazards...), consumerHazards...)
}

var transportHazards = []Hazard{
	{"A publish within a process answers with success before anybody has acknowledged: with no subscription yet, on Close, or when the subscription is cancelled.",
		[]Test{{memory, "TestPublishBeforeAnySubscriptionIsReturned"}, {memory, "TestCloseWhileTheHandlerRunsIsNotConfirmed"},
			{memory, "TestSubscriptionCancelledWhileTheHandlerRunsIsNotConfirmed"}}},
	{"Within a process one slow handler holds the whole topic, a waiting subscriber holds other topics, and a nack comes back a million times a second.",
		[]Test{{memory, "TestSlowHandlerDelaysNoOtherKeyOfItsTopic"}, {memory, "TestSubscribeOnOneTopicDelaysNoOther"}, {memory, "TestNacksOfAMinuteAreFew"}}},
	{"Returns and confirms arrive on two channels: a message that came back is judged by its confirm, which says yes.",
		[]Test{{amqp, "TestUnroutableIsNeverConfirmed"}, {amqp, "TestReturnBelongsToItsPublish"}}},
	{"A publisher that waits for no confirm, or for one without a deadline, loses messages or hangs.",
		[]Test{{amqp, "TestUnsafePublisherIsRefused"}, {amqp, "TestConfirmThatMissesItsDeadlineClosesTheConnection"}, {amqp, "TestEndOfAContextEndsOneWait"}}},
	{"Tags begin anew on every channel: a late acknowledgement, or a bulk one, settles messages that nobody has handled.",
		[]Test{{amqp, "TestAcksDoNotCrossToAnotherChannel"}, {amqp, "TestBulkAcksCoverOnlyAFinishedPrefix"}}},
	{"Giving messages back by nack at shutdown puts them behind later ones, at every deployment.",
		[]Test{{amqp, "TestShutdownKeepsTheOrder"}, {amqp, "TestNackIsADeliveryAgainFromHere"}}},
	{"A broker's delivery limit drops messages whose consumer crashed, and its remedy on one version drops them at once on another.",
		[]Test{{amqp, "TestDeliveryLimitFollowsTheVersionOfTheBroker"}, {amqp, "TestNothingIsDroppedForTooManyDeliveries"}, {amqp, "TestUnsafeSubscriberIsRefused"}}},
	{"An exchange or a queue is deleted, and a publisher that has declared it once never does again.",
		[]Test{{amqp, "TestDeletedExchangeIsDeclaredAgain"}, {amqp, "TestDeletedQueueIsDeclaredAgain"}}},
	{"A header that is no text, which brokers add at a redelivery, makes a message undeliverable and the consumer spin.",
		[]Test{{amqp, "TestRedeliveryOfAQuorumQueueIsRead"}, {amqp, "TestDeadLetteredMessageIsRead"}, {amqp, "TestHeaderOfAnyTypeBecomesText"}}},
	{"A closed channel is read as an empty message, and the handler runs for it.",
		[]Test{{amqp, "TestDeletedQueueGivesNoMessage"}, {inbox, "TestMessageWithoutDispatchIDNeverReachesTheHandler"}}},
	{"What a protocol cannot carry is cut to fit, or closes the connection under everybody else.",
		[]Test{{amqp, "TestWhatTheProtocolCannotCarryIsInvalid"}, {outbox, "TestAnInvalidEventNamesTheFieldNotTheValueAndWritesNothing"}}},
	{"The error of a failed connection prints the password; that of a conflict prints the row; a log prints the payload.",
		[]Test{{amqp, "TestFailedLoginDoesNotShowThePassword"}, {amqp, "TestPasswordWithReservedCharactersIsNotShown"}, {pg, "TestConflictShowsNoDetail"},
			{pg, "TestErrorsShowNeitherPayloadNorMetadata"}, {chain, "TestFailedPublishesTellNoSecrets"}, {chain, "TestFailedHandlersTellNoSecrets"}}},
}

var relayHazards = []Hazard{
	{"Numbers are given out in another order than transactions commit in: a cursor skips what commits late.",
		[]Test{{relay, "TestAnEventOfALowerIDThatCommitsLaterIsDelivered"}, {chain, "TestLowerIDThatCommitsLateIsDeliveredInTheOrderOfItsKey"},
			{pg, outboxC + "concurrent writers/lower ID that is committed later is found, and its writer was named"}}},
	{"What commits late is found, and sent behind the next event of its key.",
		[]Test{{core, "TestAnEventThatCommitsLateIsNotOvertakenByTheNextOfItsKey"}, {core, "TestSimulate"}}},
	{"Waiting for the oldest transaction of the server lets one idle transaction, anywhere, stop delivery.",
		[]Test{{pg, "TestIdleTransactionsThatWriteNoEventAreNoWriters"}, {chain, "TestIdleTransactionsThatWriteNoEventDoNotStallDelivery"}}},
	{"A prepared transaction is no session any more, and its events are forgotten with it.",
		[]Test{{pg, "TestPreparedTransactionStaysAWriter"}, {core, "TestAWriterThatIsPreparedStaysAWriter"}}},
	{"A relay that was stopped past its lease wakes up and parks, releases or buries what is another's by now.",
		[]Test{{pg, "TestStatementOfAStoppedRelayWaitsForATakeoverAndChangesNothing"}, {pg, outboxC + "fence/owner that lost its shards changes nothing that is parked"},
			{core, "TestStoppedRelayThatWakesUpChangesNothing"}, {chain, "TestRelayThatIsStoppedAndWokenChangesNothing"}}},
	{"A fence that only looks misses a takeover which commits meanwhile; one that locks too much makes renewals wait, and relays and operators deadlock.",
		[]Test{{pg, "TestTakeoverPassesOverAShardWhereAFencedStatementRuns"}, {pg, "TestRenewalWaitsForNoFencedStatementAndReleaseDoes"}, {pg, "TestRelaysAndOperatorsDoNotDeadlock"}}},
	{"Leases by the clock of a machine end when that clock wants; after the database's clock was set back, those of the dead never end.",
		[]Test{{pg, "TestLeasesLastByTheClockOfTheDatabase"}, {pg, "TestLeaseOfBeforeTheClockWasSetBackHasExpired"}, {core, "TestARenewedLeaseCountsFromBeforeItsRenewal"}}},
	{"A newcomer that owns nothing is invisible, and nobody shares with it.",
		[]Test{{core, "TestShardsAreSharedFairly"}, {pg, outboxC + "lease/relays are visible for as long as they say"}}},
	{"A late mark of the first sending deletes the row that an operator's replay has put there since; counted rounds meet one another.",
		[]Test{{pg, "TestLateMarkOfAnEarlierRoundKeepsTheRow"}, {core, "TestAnEventIsReplayedThoughItsMarkIsUnderWay"}}},
	{"A queue row whose event is gone is never seen, and silently lost.",
		[]Test{{pg, "TestQueueRowWithoutAnEventIsMissingAndNotSilent"}, {core, "TestAQueueRowWithoutAnEventIsLoudAndDead"}}},
	{"Followers of a parked event return to the queue and meet fresh events of their key.",
		[]Test{{core, "TestAFailedKeyIsSentFromItsParkedEventsInOrder"}, {core, "TestAFreshEventWaitsUntilTheLastParkedOneOfItsKeyHasGone"},
			{core, "TestFollowersDoNotOvertakeAnEventThatIsStillToBeMoved"}}},
	{"One connection of a relay parks a follower while the other releases its head: a follower without a head, in a key that counts as free.",
		[]Test{{core, "TestAFollowerWithoutAHeadBecomesTheHead"}, {pg, outboxC + "promotion/heal makes a follower without a head the head"},
			{pg, "TestDiscardDuringASentLeavesNoKeyWithoutAHeadOnceItIsHealed"}}},
	{"A key stays blocked for ever by a dead event, or a redriven one gives it two heads.",
		[]Test{{pg, outboxC + "parked/dead event is not due and blocks with hold only"}, {pg, outboxC + "promotion/two heads are never due"},
			{core, "TestADeadHeadHoldsItsKeyUntilAnOperatorActs"}}},
	{"An operator has no lease: his change is not seen, or the next one's request is cleared with it.",
		[]Test{{pg, outboxC + "operator/operator's change asks the owner for a rewind"}, {pg, outboxC + "operator/rewind is cleared by its own ticket only"},
			{core, "TestARewindOfTwoAnswersToTheSecond"}}},
	{"A topic without a queue yet burns the attempts of its whole backlog, or stops every other topic.",
		[]Test{{core, "TestAPausedRouteCountsNothingAndDelaysNoOther"}, {core, "TestTheBacklogOfAStalledRouteTakesNoRoomFromOthers"},
			{core, "TestAnUnreachableTransportCountsNothingAndKeepsTheOrder"}}},
	{"A route whose only event is bad is paused for ever; one that is probed with its oldest event only stays closed for the healthy ones behind it.",
		[]Test{{core, "TestARouteWithOneKeyCountsOnTheBackoffSchedule"}, {core, "TestOneBadEventDoesNotKeepARouteClosed"}, {core, "TestProbesRotateOverKeysOldestFirst"}}},
	{"One message closes the channel, all in flight fail with it, and are sent together again.",
		[]Test{{amqp, "TestExceptionIsThatOfItsMessage"}, {core, "TestEventThatEndsItsChannelCountsAloneAndDies"}}},
	{"A key with a long backlog starves its neighbours; reading past it loses its place.",
		[]Test{{core, "TestAHotKeyDoesNotStarveItsNeighboursAndKeepsItsOrder"}}},
	{"The first failure in a batch fails the rest of it, or a batch is taken for delivered as a whole.",
		[]Test{{relay, "TestABatchThatFailedIsNarrowedDown"}, {amqp, "TestPublishTellsWhichMessagesFailed"}}},
	{"The same event again is an error, or other content under its dispatch ID is dropped, and the caller who ignores that commits.",
		[]Test{{pg, outboxC + "append/repeated event is known and changes nothing"}, {pg, outboxC + "append/other content under a known ID dooms the transaction"},
			{pg, outboxC + "concurrent writers/other content waits for the first and conflicts"}, {outbox, "TestASwallowedWriteErrorIsNotCommitted"}}},
	{"Equal events written in opposite orders deadlock, and the loser cannot be told from a failure.",
		[]Test{{pg, outboxC + "concurrent writers/opposite orders end in a retryable error or not at all"}, {pg, "TestRaceOfEqualEventsIsRetryableAtStricterLevels"}}},
	{"Two writers on one transaction, or a savepoint that was rolled back, number different events alike.",
		[]Test{{pg, outboxC + "append/second writer is refused and writes nothing"}, {outbox, "TestASavepointRolledBackTakesItsCountAlong"},
			{pg, "TestSavepointThatIsRolledBackUntiesTheWriter"}}},
	{"Two services with the same names give different events one dispatch ID; joined parts do so within one service.",
		[]Test{{"idgen", "TestIDsThatLookAlikeDiffer"}, {"idgen", "TestVectorsAreWhatThisPackageComputes"}, {"idgen", "TestPostgreSQLReproducesTheVectors"}}},
	{"A digest over times and traces makes every repetition an error; one that leaves content out makes every change a repetition.",
		[]Test{{"transport", "TestDigestDependsOnContentOnly"}, {"transport", "TestDigestsAreFixed"}}},
	{"What is old is removed by its age, whatever its state, or counted from its creation, so that an event is gone when it has just been delivered.",
		[]Test{{pg, outboxC + "janitor/event that is not delivered stays, however old"}, {pg, outboxC + "janitor/retention counts from delivery, not from creation"}}},
	{"The database reuses the number of a removed event, below where everything was read.",
		[]Test{{"store/sqlite", "TestIDOfARemovedNewestEventIsNotGivenAwayAgain"}}},
	{"COMMIT says nothing, and the caller runs the transaction again, or takes it for failed.",
		[]Test{{pg, "TestCommitWithALostReplyIsUnknownAndMayHaveHappened"}, {pg, "TestCommitOnATerminatedConnectionIsUnknownOrRefused"},
			{outbox, "TestAnUnknownCommitIsNotRunAgain"}}},
}

var consumerHazards = []Hazard{
	{"A message is marked as seen before its handler has succeeded.",
		[]Test{{inbox, "TestNothingIsRememberedBeforeItsCommit"}, {inbox, "TestNothingIsAcknowledgedWhileItsHandlerRuns"}}},
	{"Two copies at once both look, both find nothing, and both run.",
		[]Test{{inbox, "TestManyConsumersRacingOverTheSameDispatchesApplyEachOnce"}, {pg, inboxC + "race/32 racers over 200 IDs have 200 effects"},
			{pg, inboxC + "race/racers under repeatable read have one effect per ID"}}},
	{"A claim that goes to the database together with the effects does not stop them, or a handler that ran in vain counts an attempt.",
		[]Test{{pg, "TestConsumerContractOfClaimsSentWithTheCommit/race/32 racers over 200 IDs have 200 effects"}, {pg, "TestWhatAHandlerDoesPastARefusedClaimIsRolledBack"},
			{pg, "TestHandlerOfAnOptimisticClaimThatFailsForADuplicateCountsForNothing"}, {inbox, "TestWaitForAnOptimisticClaimCountsNoAttempt"}}},
	{"Two handlers of one topic share a name, a window or a key, and the second never runs.",
		[]Test{{inbox, "TestTwoHandlersOfOneTopicBothRun"}, {inbox, "TestTwoHandlersUnderOneNameAreRefused"}, {"middleware", "TestHandlersOfARouterAreConsumersOfTheirOwn"},
			{pg, inboxC + "claim/two consumers with the same IDs do not disturb each other"}}},
	{"Claim and forgetting in one transaction let a waiting copy claim what was just forgotten.",
		[]Test{{pg, "TestCopyThatWaitsWhileItsClaimIsForgottenIsTooOld"}, {pg, "TestCopyThatWaitsWhileWhatIsForgottenMovesOnIsTooOld"}, {pg, inboxC + "race/copy never claims an ID that is being forgotten"},
			{pg, "TestAdvanceBehindASnapshotIsAConflict"}}},
	{"A clock that jumps a year ahead makes a consumer forget, and refuse, everything.",
		[]Test{{pg, "TestClockThatJumpsAYearForgetsNothing"}, {inbox, "TestClockThatJumpedIsReportedAndForgetsNothingMore"}}},
	{"A consumer that is new has forgotten nothing, and yet sets history aside as too old.",
		[]Test{{inbox, "TestNewConsumerReadsHistoryOfAnyAge"}, {pg, inboxC + "window/young consumer forgets nothing and reads history of any age"}}},
	{"Copies of one event carry different stamps, or none, and the age of each is judged differently.",
		[]Test{{pg, outboxC + "append/stamp is the time of writing and the same in every copy"}, {"transport", "TestStampIsOneInstantWhateverItsZone"},
			{pg, inboxC + "window/message without a stamp is deduplicated from its arrival"}}},
	{"A parked message is applied by a copy of it as well; a redrive is swallowed as a duplicate; a discard lets the next copy run.",
		[]Test{{inbox, "TestCopyThatWasAppliedMeanwhileIsNotParked"}, {pg, inboxC + "race/copies parked and applied at once have one outcome"},
			{inbox, "TestRefusedAndDeadMessagesCanBeRedriven"}, {pg, inboxC + "operator/discarded message keeps reason and claim, and lets the next one run"}}},
	{"A newcomer looks for parked predecessors while they are being released, and follows nobody.",
		[]Test{{pg, inboxC + "order/newcomer that waits while its predecessor is parked follows it"},
			{pg, inboxC + "order/newcomer that waits while the last parked one is handled does not follow"},
			{pg, inboxC + "race/later messages of a key never pass a parked one"}}},
	{"Known means known, not equal: another message under a forged or reused dispatch ID is dropped as a duplicate.",
		[]Test{{inbox, "TestOtherContentUnderAnAppliedIDIsSetAside"}, {inbox, "TestCopyWithoutDigestDoesNotHideAnAlteredOne"},
			{pg, inboxC + "park/message that is set aside is kept once, without a claim"}}},
	{"A message that kills the process comes back for ever, and its innocent neighbours are convicted with it.",
		[]Test{{inbox, "TestMessageThatKillsEveryProcessIsDeadInTheEnd"}, {inbox, "TestRedeliveredMessageRunsBesideOthersFirstAndThenAlone"},
			{relay, "TestMessagesOfATakeOverSayThatTheyAreRedelivered"}, {memory, "TestStartOfAnEarlierProcessIsPassedOn"}}},
	{"A process that is stopped in a handler keeps its claim, and every copy waits for it.",
		[]Test{{pg, "TestIdleTimeoutFreesTheClaimOfAStuckHandler"}, {pg, inboxC + "claim/wait for a claim ends with a conflict after the lock timeout"}}},
	{"The timeouts of the claim stay in force for the handler, or a handler that idles past them counts no attempt, for ever.",
		[]Test{{pg, "TestHandlerRunsUnderTheSettingsOfTheSession"}, {inbox, "TestHandlerThatOverrunsItsDeadlineCountsWhateverTheErrorIs"}}},
	{"Messages that wait for their next attempt fill the prefetch, and nothing else is handled.",
		[]Test{{inbox, "TestFailureIsRetriedQuicklyAndThenParked"}, {inbox, "TestOneSlowParkedMessageDelaysNoOther"}}},
	{"An outage of the database counts attempts; or the poison that looks like one never does.",
		[]Test{{inbox, "TestOutageCountsNoAttemptsAndLosesNothing"}, {inbox, "TestPoisonThatLooksLikeAnOutageIsNotImmortal"}, {inbox, "TestPoisonousMessagesDoNotExcuseEachOther"}}},
	{"COMMIT says nothing: the message is acknowledged unapplied, run twice, or held until the broker gives up on it.",
		[]Test{{inbox, "TestUnknownCommitThatHappenedIsNotRunAgain"}, {inbox, "TestUnknownCommitThatDidNotHappenIsRunAgainAtOnce"},
			{pg, "TestParkedMessageWhoseCommitIsUnknownHasOneEffect"}, {chain, "TestCommitsWhoseRepliesAreLostHaveOneEffect"}}},
	{"COMMIT answers ROLLBACK, since the handler swallowed the error of a statement, and that counts as success.",
		[]Test{{inbox, "TestSwallowedErrorOfAStatementIsNoSuccess"}, {inbox, "TestErrorOfPostgresThatAHandlerSwallowsIsNoSuccess"},
			{"store/sqlite", "TestHandlerThatSwallowsALostTransactionAppliesNothing"}}},
	{"The router cancels its messages when it closes, and cuts transactions off in the middle.",
		[]Test{{inbox, "TestTransactionOutlivesTheRoutersContext"}, {"middleware", "TestHandlerFinishesWhileTheRouterCloses"}}},
	{"The database fails over, and what the process remembers of the old one is believed.",
		[]Test{{inbox, "TestWindowForgetsAfterTroubleWithTheDatabase"}, {inbox, "TestConsumerIsRegisteredAgainAfterTroubleWithTheDatabase"}}},
	{"What a failed attempt has emitted is sent all the same, or a second attempt emits it under other IDs.",
		[]Test{{inbox, "TestEventsAndEffectsOfAFailedAttemptAreRolledBack"}, {inbox, "TestEventsOfAHandlerAreChildrenOfItsMessage"}, {chain, "TestSagaOfThreeHopsIsDeterministic"}}},
	{"Retrying inside the transaction runs in one that is already aborted.",
		[]Test{{"middleware", "TestMiddlewareThatRepeatsOrHidesIsRefusedInside"}, {pg, "TestHandlerIsToldThatAStatementHadFailedBefore"}}},
}
