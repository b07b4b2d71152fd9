package mutants

// publishing is about the publisher for RabbitMQ.
var publishing = []Mutant{
	{
		Name: "returns-ignored", Guarantee: "G2",
		Broken: "A message that the broker returned as unroutable counts as confirmed.",
		File:   "transport/amqp/judge.go",
		Old:    `	case s.in.confirm.Acked() && s.in.returned == nil:`,
		New:    `	case s.in.confirm.Acked():`,
		Test:   Test{"transport/amqp", "TestUnroutableIsNeverConfirmed"},
	},
	{
		Name: "mandatory-off", Guarantee: "G2",
		Broken: "Messages are published without asking for their return when there is no route.",
		File:   "transport/amqp/send.go",
		Old:    `PublishWithDeferredConfirm(out.exchange, out.key, true, false, out.pub)`,
		New:    `PublishWithDeferredConfirm(out.exchange, out.key, false, false, out.pub)`,
		Test:   Test{"transport/amqp", "TestUnroutableIsNeverConfirmed"},
	},
	{
		Name: "batch-not-mandatory", Guarantee: "G2",
		Broken: "Batches are published without asking for their return when there is no route.",
		File:   "transport/amqp/batch.go",
		Old:    `PublishWithDeferredConfirm(b.to.exchange, b.to.key, true, false, pub)`,
		New:    `PublishWithDeferredConfirm(b.to.exchange, b.to.key, false, false, pub)`,
		Test:   Test{"transport/amqp", "TestFailureIsThatOfTheWholeBatch"},
	},
	{
		Name: "suspect-not-mandatory", Guarantee: "G2",
		Broken: "Messages that are published again behind an exception are not returned when there is no route.",
		File:   "transport/amqp/suspects.go",
		Old:    `PublishWithDeferredConfirm(out.exchange, out.key, true, false, out.pub)`,
		New:    `PublishWithDeferredConfirm(out.exchange, out.key, false, false, out.pub)`,
		Test:   Test{"transport/amqp", "TestUnroutableMessageIsReturnedThoughItsChannelHasEnded"},
	},
	{
		Name: "returns-read-too-late", Guarantee: "G2",
		Broken: "Confirms are judged before the returns that have arrived ahead of them are looked at.",
		File:   "transport/amqp/judge.go",
		Old:    `	c.takeReturns()` + "\n" + `	judged := jd.judged[:0]`,
		New:    `	defer c.takeReturns()` + "\n" + `	judged := jd.judged[:0]`,
		Test:   Test{"transport/amqp", "TestUnroutableIsNeverConfirmed"},
	},
	{
		Name: "returns-of-another-publish", Guarantee: "G2",
		Broken: "A return is booked on whichever message is the oldest.",
		File:   "transport/amqp/judge.go",
		Old:    `				if s.in.seq == seq {`,
		New:    `				if seq != "" {`,
		Test:   Test{"transport/amqp", "TestReturnBelongsToItsPublish"},
	},
	{
		Name: "returns-of-nobody", Guarantee: "G2",
		Broken: "A marshaler that replaces the headers removes the number that identifies a return.",
		File:   "transport/amqp/codec.go",
		Old:    `	if pub.Headers[seqHeader] != seq {`,
		New:    `	if seq == "" {`,
		Test:   Test{"transport/amqp", "TestReturnIsMatchedWhateverTheHookLeavesOfTheMessage"},
	},
	{
		Name: "envelope-for-ever", Guarantee: "G4",
		Broken: "Envelopes are not opened: the consumer sees no key, and no stamp.",
		File:   "transport/amqp/codec.go",
		Old:    `	case d.ContentEncoding == envelopeEncoding:`,
		New:    `	case d.ContentEncoding == envelopeEncoding && len(d.Headers) > 99:`,
		Test:   Test{"transport/amqp", "TestEnvelopesAreSentOnRequest"},
	},
	{
		Name: "envelope-under-another-id", Guarantee: "G3",
		Broken: "A message in an envelope arrives under the dispatch ID of the message whose metadata was copied.",
		File:   "transport/amqp/wire_envelope.go",
		Old:    `	if headers[wamqp.DefaultMessageUUIDHeaderKey] == nil {`,
		New:    `	if d.MessageId == "" {`,
		Test:   Test{"transport/amqp", "TestEnvelopeIsOfItsOwnMessage"},
	},
	{
		Name: "envelope-returned-to-nobody", Guarantee: "G2",
		Broken: "A message in an envelope that no queue took is not known when it comes back, and counts as confirmed.",
		File:   "transport/amqp/wire_envelope.go",
		Old:    `	if !ok || r.ContentEncoding != envelopeEncoding && r.ContentEncoding != batchEncoding {`,
		New:    `	if ok || r.ContentEncoding != "" {`,
		Test:   Test{"transport/amqp", "TestReturnIsMatchedWhateverTheHookLeavesOfTheMessage"},
	},
	{
		Name: "envelope-given-back-early", Guarantee: "G6",
		Broken: "The memory of an envelope is reused for another envelope before the first was written.",
		File:   "transport/amqp/publisher.go",
		Old: `	if r := p.send(ctx, &out, done); r != nil {
		done(*r)
	}
	if used != nil {
		used.release()
	}`,
		New: `	if used != nil {
		used.release()
	}
	if r := p.send(ctx, &out, done); r != nil {
		done(*r)
	}`,
		Test: Test{"transport/amqp", "TestEnvelopesOfManyGoroutinesAreNotMixed"},
	},
	{
		Name: "envelope-half-open", Guarantee: "G6",
		Broken: "A message whose envelope cannot be opened is handled without key, digest and stamp.",
		File:   "transport/amqp/codec.go",
		Old: `		meta[transport.MetaEnvelope] = unreadable
		return body`,
		New:  `		return body`,
		Test: Test{"transport/amqp", "TestEnvelopeThatCannotBeOpenedIsRefusedWhole"},
	},
	{
		Name: "envelope-taken-for-readable", Guarantee: "G6",
		Broken: "The inbox does not look at whether an envelope could be opened.",
		File:   "transport/event.go",
		Old:    `	case MetaEnvelope:`,
		New:    `	case MetaEnvelope + "never":`,
		Test:   Test{"transport", "TestUnreadableMetadataIsNamedAndStaysZero"},
	},
	{
		Name: "envelope-of-the-message-before", Guarantee: "G6",
		Broken: "The memory of an envelope is reused for the next envelope without being emptied.",
		File:   "transport/amqp/codec.go",
		Old:    `appendEnvelope(p.body[:0], msg`,
		New:    `appendEnvelope(p.body, msg`,
		Test:   Test{"transport/amqp", "TestBodiesThatAreUsedAgainAreNotMixed"},
	},
	{
		Name: "confirm-deadline-ignored", Guarantee: "G5",
		Broken: "A publish waits for its confirm for ever.",
		File:   "transport/amqp/judge.go",
		Old:    `		timedOut := s.written.Before(since)`,
		New:    `		timedOut := s.written.Before(since) && s.bytes < 0`,
		Test:   Test{"transport/amqp", "TestConfirmThatMissesItsDeadlineClosesTheConnection"},
		Hang:   true,
	},
	{
		Name: "cut-connection-confirms", Guarantee: "G2",
		Broken: "Messages that were not confirmed when the connection broke count as confirmed.",
		File:   "transport/amqp/judge.go",
		Old:    `		return *unavailable(fmt.Errorf("channel closed before the confirm: %w", errors.Join(errNotConnected, c.failure)))`,
		New:    `		return transport.Result{Outcome: transport.Confirmed, Err: errors.Join()}`,
		Test:   Test{"transport/amqp", "TestCutConnectionsLoseNothingConfirmed"},
	},
	{
		Name: "confirms-kept-without-bound", Guarantee: "G5",
		Broken: "One unanswered message makes the client keep every later confirm.",
		File:   "transport/amqp/judge.go",
		Old:    ` || c.handled > s.in.confirm.DeliveryTag+jd.confirmsAhead) {`,
		New:    `) {`,
		Test:   Test{"transport/amqp", "TestOnANodeOfItsOwn/queue that answers nothing fills no memory"},
	},
	{
		Name: "slow-key-stops-others", Guarantee: "G5",
		Broken: "Messages that wait for an earlier one of their key take the room of other keys.",
		File:   "transport/amqp/consume.go",
		Old:    `ch.Qos(sub.s.config.Prefetch, 0, false)`,
		New:    `ch.Qos(sub.s.config.InFlight, 0, false)`,
		Test:   Test{"transport/amqp", "TestMessagesThatWaitForTheirKeyLeaveRoomForOthers"},
	},
	{
		Name: "nack-is-ack", Guarantee: "G2",
		Broken: "A message that the broker refused, as a full queue does, counts as confirmed.",
		File:   "transport/amqp/judge.go",
		Old:    `	case !closed:` + "\n" + `		return transport.Result{Outcome: transport.Refused,`,
		New:    `	case !closed:` + "\n" + `		return transport.Result{Outcome: transport.Confirmed,`,
		Test:   Test{"transport/amqp", "TestFullQueueRefuses"},
	},
	{
		Name: "topology-declared-once", Guarantee: "G2",
		Broken: "A queue that was deleted is not declared again.",
		File:   "transport/amqp/prepare.go",
		Old:    `ok && time.Since(at) > redeclareAfter {`,
		New:    `ok && time.Since(at) < 0 {`,
		Test:   Test{"transport/amqp", "TestDeletedQueueIsDeclaredAgain"},
	},
	{
		Name: "declared-at-once", Guarantee: "G2",
		Broken: "A quorum queue is declared again before the broker has told its consumers of its end: they get nothing any more.",
		File:   "transport/amqp/prepare.go",
		Old:    `			pause = cancelGrace - time.Since(at)`,
		New:    `			pause = 0 * time.Since(at)`,
		Test:   Test{"transport/amqp", "TestConsumerOfADeletedQueueConsumesTheNext"},
	},
	{
		Name: "transient-messages", Guarantee: "G2",
		Broken: "Messages do not survive a restart of the broker.",
		File:   "transport/amqp/codec.go",
		Old:    `		pub.DeliveryMode = amqp091.Persistent`,
		New:    `		pub.DeliveryMode = amqp091.Transient`,
		Test:   Test{"transport/amqp", "TestPropertiesSayWhatTheMetadataSays"},
	},
	{
		Name: "header-limit-off", Guarantee: "G5",
		Broken: "Headers that make the broker close the connection are sent.",
		File:   "transport/amqp/limits.go",
		Old: `	if size += n; size > maxHeaderBytes {
		return 0, fmt.Errorf("headers: %d bytes, more than %d", size, maxHeaderBytes)
	}
	return size, nil`,
		New: `	_ = size + n
	return 0, nil`,
		Test: Test{"transport/amqp", "TestWhatTheProtocolCannotCarryIsInvalid"},
	},
	{
		Name: "long-routing-key", Guarantee: "G2",
		Broken: "A routing key that is too long for the protocol is sent, and may arrive cut.",
		File:   "transport/amqp/send.go",
		Old:    `	if err := checkShort("routing key", out.key); err != nil {`,
		New:    `	if err := checkShort("routing key", ""); err != nil {`,
		Test:   Test{"transport/amqp", "TestWhatTheProtocolCannotCarryIsInvalid"},
	},
	{
		Name: "whole-window-is-to-blame", Guarantee: "G5",
		Broken: "When one message closes the channel, all in flight are reported as unavailable, and are sent again together.",
		File:   "transport/amqp/judge.go",
		Old:    `		if unanswered > 1 && !s.in.confirm.Acked()`,
		New:    `		if unanswered > 1<<30 && !s.in.confirm.Acked()`,
		Test:   Test{"transport/amqp", "TestExceptionIsThatOfItsMessage"},
	},
	{
		Name: "neighbour-convicted", Guarantee: "G5",
		Broken: "A message that the broker has accepted is blamed for the exception of the next message.",
		File:   "transport/amqp/suspects.go",
		Old:    `		c.handled = max(c.handled, s.in.confirm.DeliveryTag)`,
		New:    `		c.handled = 0`,
		Test:   Test{"transport/amqp", "TestOnANodeOfItsOwn/culprit is found beside a queue that answers nothing"},
	},
	{
		Name: "password-in-a-parse-error", Guarantee: "G7",
		Broken: "The error for an AMQP URI that cannot be parsed shows the URI, with its password.",
		File:   "transport/amqp/url.go",
		Old:    "	u, err := url.Parse(uri)\n	if err != nil {\n		return amqp091.URI{}, errURI",
		New:    "	u, err := url.Parse(uri)\n	if err != nil {\n		return amqp091.URI{}, err",
		Test:   Test{"transport/amqp", "TestPasswordWithReservedCharactersIsNotShown"},
	},
	{
		Name: "password-of-a-failed-login", Guarantee: "G7",
		Broken: "The error of a connection attempt shows the password.",
		File:   "transport/amqp/broker.go",
		Old:    `redact(err, password))`,
		New:    `fmt.Errorf("%w (%s)", err, password))`,
		Test:   Test{"transport/amqp", "TestFailedLoginDoesNotShowThePassword"},
	},
	{
		Name: "confirms-off", Guarantee: "G7",
		Broken: "A configuration without confirms is accepted.",
		File:   "transport/amqp/config.go",
		Old:    `	if c.AMQP.Publish.Transactional {`,
		New:    `	if c.AMQP.Publish.Transactional && c.AllowLoss {`,
		Test:   Test{"transport/amqp", "TestUnsafePublisherIsRefused"},
	},
	{
		Name: "queue-that-drops", Guarantee: "G7",
		Broken: "A queue that drops its oldest messages when it is full is accepted.",
		File:   "transport/amqp/config.go",
		Old:    `	if limited && (overflow == ""`,
		New:    `	if limited && len(args) == 0 && (overflow == ""`,
		Test:   Test{"transport/amqp", "TestUnsafeSubscriberIsRefused"},
	},
	{
		Name: "delivery-limit-that-drops", Guarantee: "G7",
		Broken: "A queue that drops messages after some deliveries is accepted.",
		File:   "transport/amqp/config.go",
		Old:    `	if args[deliveryLimitArg] != nil && !limitIsSafe {`,
		New:    `	if args[deliveryLimitArg] == nil && !limitIsSafe && args["x"] != nil {`,
		Test:   Test{"transport/amqp", "TestUnsafeSubscriberIsRefused"},
	},
	{
		Name: "default-delivery-limit-accepted", Guarantee: "G7",
		Broken: "A subscriber consumes from a queue of RabbitMQ 4 that drops messages after 20 deliveries.",
		File:   "transport/amqp/topology.go",
		Old:    `		if !errors.As(err, &other) || !other.safe {`,
		New:    `		if !errors.As(err, &other) {`,
		Test:   Test{"transport/amqp", "TestQueueOfBeforeVersion4IsUsedWhereItIsSafe"},
	},
}

// subscribing is about the subscriber for RabbitMQ.
var subscribing = []Mutant{
	{
		Name: "acknowledged-at-delivery", Guarantee: "G2",
		Broken: "Messages are acknowledged as soon as they are delivered.",
		File:   "transport/amqp/admit.go",
		Old:    `	consumer.acks.add(d)`,
		New: `	consumer.acks.add(d)
	_ = consumer.ch.Ack(raw.DeliveryTag, false)
	consumer.acks.list = nil`,
		Test: Test{"transport/amqp", "TestShutdownKeepsTheOrder"},
	},
	{
		Name: "bulk-ack-over-a-gap", Guarantee: "G2",
		Broken: "A bulk acknowledgement covers messages that are not finished.",
		File:   "transport/amqp/acks.go",
		Old:    `	prefix := slices.IndexFunc(a.list, func(k ack) bool { return !k.finished })`,
		New:    `	prefix := slices.IndexFunc(a.list, func(k ack) bool { return false })`,
		Test:   Test{"transport/amqp", "TestBulkAcksCoverOnlyAFinishedPrefix"},
	},
	{
		Name: "batch-acknowledged-with-its-first", Guarantee: "G2",
		Broken: "A batch is acknowledged when one of its messages is finished.",
		File:   "transport/amqp/acks.go",
		Old:    `		if d.unfinished--; d.unfinished > 0 {`,
		New:    `		if d.unfinished--; d.unfinished < 0 {`,
		Test:   Test{"transport/amqp", "TestNackIsOfOneMessageOfABatch"},
	},
	{
		Name: "batch-under-one-id", Guarantee: "G3",
		Broken: "The messages of a batch arrive under its own ID.",
		File:   "transport/amqp/admit.go",
		Old:    `		raw.MessageId, raw.ContentEncoding, raw.Body = p.id, envelopeEncoding, p.envelope`,
		New:    `		raw.ContentEncoding, raw.Body = envelopeEncoding, p.envelope`,
		Test:   Test{"transport/amqp", "TestBatchIsItsMessages"},
	},
	{
		Name: "batch-half-read", Guarantee: "G6",
		Broken: "A batch that cannot be split is handled as a message without key, digest and stamp.",
		File:   "transport/amqp/codec.go",
		Old:    `	case isOwnEncoding(d.ContentEncoding):`,
		New:    `	case isOwnEncoding(d.ContentEncoding) && d.ContentEncoding != batchEncoding:`,
		Test:   Test{"transport/amqp", "TestBatchThatCannotBeReadIsHandedOutWhole"},
	},
	{
		Name: "later-format-handled", Guarantee: "G6",
		Broken: "A message in a format of a later version is handled as if its body were the payload.",
		File:   "transport/amqp/codec.go",
		Old:    `	case isOwnEncoding(d.ContentEncoding):`,
		New:    `	case d.ContentEncoding == batchEncoding:`,
		Test:   Test{"transport/amqp", "TestFormatOfALaterVersionIsUnreadable"},
	},
	{
		Name: "batch-out-of-order", Guarantee: "G4",
		Broken: "With one message in flight, a nacked message of a batch is overtaken by the messages behind it.",
		File:   "transport/amqp/subscription.go",
		Old:    `len(sub.inFlight)+len(sub.delayed) < sub.s.config.InFlight {`,
		New:    `len(sub.inFlight) < sub.s.config.InFlight {`,
		Test:   Test{"transport/amqp", "TestOneInFlightIsOneOrderOfBatches"},
	},
	{
		Name: "acks-cross-channels", Guarantee: "G2",
		Broken: "A message of an earlier channel is acknowledged on the new one, where its tag is another message's.",
		File:   "transport/amqp/subscription.go",
		Old: `		case d.acked && d.from == consumer:
			sub.admitted--
			consumer.acks.finish(d)`,
		New: `		case d.acked:
			sub.admitted--
			consumer.acks.add(d)
			consumer.acks.finish(d)`,
		Test: Test{"transport/amqp", "TestAcksDoNotCrossToAnotherChannel"},
	},
	{
		Name: "requeue-on-shutdown", Guarantee: "G4",
		Broken: "Unfinished messages are nacked with requeue at shutdown, which puts them behind later messages of a quorum queue.",
		File:   "transport/amqp/subscription.go",
		Old: `		sub.logger.Warn("cannot acknowledge", "error", err)
	}`,
		New: `		sub.logger.Warn("cannot acknowledge", "error", err)
	}
	_ = consumer.ch.Nack(0, true, true)`,
		Test: Test{"transport/amqp", "TestShutdownKeepsTheOrder"},
	},
	{
		Name: "nack-goes-to-the-broker", Guarantee: "G4",
		Broken: "A nack is passed on to the broker, which may deliver later messages of the key first.",
		File:   "transport/amqp/subscription.go",
		Old:    `			sub.delay(d)`,
		New: `			_ = consumer.ch.Nack(d.raw.DeliveryTag, false, true)
			consumer.acks.list = nil
			sub.advance(d)`,
		Test: Test{"transport/amqp", "TestNackIsADeliveryAgainFromHere"},
	},
	{
		Name: "nack-storm", Guarantee: "G5",
		Broken: "A nacked message comes back at once, thousands of times a second.",
		File:   "transport/amqp/subscription.go",
		Old:    `	d.due = time.Now().Add(b.delay(d.nacks))`,
		New:    `	d.due = time.Now().Add(b.delay(d.nacks) / 1e6)`,
		Test:   Test{"transport/amqp", "TestNackIsADeliveryAgainFromHere"},
	},
	{
		Name: "key-not-kept-together", Guarantee: "G4",
		Broken: "Messages of one key are handled at once.",
		File:   "transport/amqp/admit.go",
		Old:    `		if tail := sub.tails[d.key]; tail != nil {`,
		New:    `		if tail := sub.tails[d.key]; tail != nil && tail == d {`,
		Test:   Test{"transport/amqp", "TestMessagesOfAKeyComeOneAfterAnother"},
	},
	{
		Name: "key-forgotten-with-its-channel", Guarantee: "G4",
		Broken: "After a reconnect a message is handled beside an earlier one of its key, whose handler still runs.",
		File:   "transport/amqp/subscription.go",
		Old: `		d.next = nil
		if d.key != "" {`,
		New: `		d.next = nil
		if d.key == "\x00" {`,
		Test: Test{"transport/amqp", "TestKeyWaitsForItsHandlerAcrossConnections"},
	},
	{
		Name: "phantom-message", Guarantee: "G3",
		Broken: "A closed channel of deliveries is read as an empty message.",
		File:   "transport/amqp/subscription.go",
		Old: `			if !ok {
				return consumer.err()
			}
			sub.receive(consumer, raw)`,
		New: `			if !ok {
				consumer.deliveries = nil
			}
			sub.receive(consumer, raw)`,
		Test: Test{"transport/amqp", "TestDeletedQueueGivesNoMessage"},
	},
	{
		Name: "headers-must-be-text", Guarantee: "G2",
		Broken: "A header that is no text, as brokers add to redelivered messages, makes a message undeliverable.",
		File:   "transport/amqp/codec.go",
		Old: `			if text, ok = headerText(value); !ok {
				continue
			}`,
		New:  `			return nil, fmt.Errorf("header %s is no text", name)`,
		Test: Test{"transport/amqp", "TestRedeliveryOfAQuorumQueueIsRead"},
	},
	{
		Name: "delivery-limit-of-rabbitmq-4", Guarantee: "G2",
		Broken: "On RabbitMQ 4 the broker's own limit applies, which drops messages after 20 deliveries.",
		File:   "transport/amqp/topology.go",
		Old:    `!ok && version >= 4 {`,
		New:    `!ok && version >= 5 {`,
		Test:   Test{"transport/amqp", "TestDeliveryLimitFollowsTheVersionOfTheBroker"},
	},
	{
		Name: "delivery-limit-on-rabbitmq-3", Guarantee: "G2",
		Broken: "RabbitMQ 3 is given a limit of -1, which drops a message at its first nack.",
		File:   "transport/amqp/topology.go",
		Old:    `!ok && version >= 4 {`,
		New:    `!ok && version >= 3 {`,
		Test:   Test{"transport/amqp", "TestDeliveryLimitFollowsTheVersionOfTheBroker"},
	},
	{
		Name: "undecodable-acknowledged-first", Guarantee: "G2",
		Broken: "A message that cannot be read is acknowledged although it could not be set aside.",
		File:   "transport/amqp/undecodable.go",
		Old:    `			if r.Outcome == transport.Confirmed {`,
		New:    `			if r.Outcome != transport.Invalid {`,
		Test:   Test{"transport/amqp", "TestUndecodableMessageIsKeptWhileItCannotBeSetAside"},
	},
}

// embedded is about the transport within a process.
var embedded = []Mutant{
	{
		Name: "memory-unroutable-is-confirmed", Guarantee: "G2",
		Broken: "A publish on a topic without a subscription succeeds.",
		File:   "transport/memory/broker.go",
		Old:    `		return transport.Result{Outcome: transport.Returned, Err: fmt.Errorf("topic %q: %w", topic, ErrUnroutable)}`,
		New:    `		defer done(transport.Result{Outcome: transport.Confirmed})` + "\n" + `		return transport.Result{}`,
		Test:   Test{"transport/memory", "TestPublishBeforeAnySubscriptionIsReturned"},
	},
	{
		Name: "memory-close-confirms", Guarantee: "G2",
		Broken: "Closing confirms messages that handlers had not acknowledged.",
		File:   "transport/memory/handover.go",
		Old:    `		r = unavailable(p.topic, ErrClosed)`,
		New:    `		r = transport.Result{Outcome: transport.Confirmed}`,
		Test:   Test{"transport/memory", "TestCloseWhileTheHandlerRunsIsNotConfirmed"},
	},
	{
		Name: "memory-one-of-several-is-enough", Guarantee: "G2",
		Broken: "The first subscription that acknowledges confirms for all.",
		File:   "transport/memory/handover.go",
		Old:    `		if p.unacked--; p.unacked == 0 && !p.settled {`,
		New:    `		if p.unacked--; p.unacked >= 0 && !p.settled {`,
		Test:   Test{"transport/memory", "TestConfirmedOnlyWhenEverySubscriptionHasAcknowledged"},
	},
	{
		Name: "memory-key-not-kept-together", Guarantee: "G4",
		Broken: "Messages of one key are handled at once.",
		File:   "transport/memory/subscription.go",
		Old:    `		if held {` + "\n" + `			if behind == nil {`,
		New:    `		if held && d.nacks > 0 {` + "\n" + `			if behind == nil {`,
		Test:   Test{"transport/memory", "TestNackedMessageHoldsItsKeyAndNoOther"},
	},
	{
		Name: "memory-nack-storm", Guarantee: "G5",
		Broken: "A nacked message comes back at once, a million times a second.",
		File:   "transport/memory/broker.go",
		Old:    `time.AfterFunc(b.cfg.redelivery(d.nacks), func()`,
		New:    `time.AfterFunc(b.cfg.redelivery(d.nacks)/1000, func()`,
		Test:   Test{"transport/memory", "TestNacksOfAMinuteAreFew"},
	},
	{
		Name: "memory-unbounded-wait", Guarantee: "G5",
		Broken: "The context of a send does not bound its wait for an acknowledgement.",
		File:   "transport/memory/broker.go",
		Old:    `	if ctx.Done() != nil {`,
		New:    `	if ctx.Done() != nil && b.closed {`,
		Test:   Test{"transport/memory", "TestSendIsBoundedByItsContext"},
		Hang:   true,
	},
}
