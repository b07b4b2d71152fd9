package mutants

// connecting is about connections to RabbitMQ, and what is asked of the broker.
var connecting = []Mutant{
	{
		Name: "bad-queue-shares-on", Guarantee: "G5",
		Broken: "A queue whose message ends the connection ends the common connection of all topics, again and again.",
		File:   "transport/amqp/connections.go",
		Old:    `	if sc.countLoss() && sc.losses >= maxLosses {`,
		New:    `	if sc.countLoss() && sc.losses > 1<<30 {`,
		Test:   Test{"transport/amqp", "TestMessageThatEndsItsConnectionHurtsNoOtherTopic"},
	},
	{
		Name: "silent-queue-shares-on", Guarantee: "G5",
		Broken: "A queue that leaves a request unanswered stays on the common connection, and ends it.",
		File:   "transport/amqp/connections.go",
		Old:    `	if !errors.Is(err, errNoAnswer) {`,
		New:    `	if !errors.Is(err, errNoAnswer) || queue != "" {`,
		Test:   Test{"transport/amqp", "TestOnANodeOfItsOwn/queue that answers nothing stops no other subscription"},
	},
	{
		Name: "policy-behind-the-argument", Guarantee: "G7",
		Broken: "The check of policies believes the argument of a queue, though a policy goes before it.",
		File:   "transport/amqp/policies.go",
		Old:    `	for _, value := range []any{q.Arguments["x-"+name], q.Effective[name]} {`,
		New:    `	for _, value := range []any{q.Arguments["x-"+name]} {`,
		Test:   Test{"transport/amqp", "TestDeliveryLimitInForceFollowsTheVersionOfTheBroker"},
	},
	{
		Name: "broker-headers-handed-on", Guarantee: "G6",
		Broken: "RabbitMQ's properties of a delivery count as metadata of the message.",
		File:   "transport/amqp/codec.go",
		Old:    `		case !isBrokerHeader(d.Headers, name):`,
		New:    `		case !isBrokerHeader(d.Headers, name) || name == "x-acquired-count":`,
		Test:   Test{"transport/amqp", "TestPropertiesOfAForeignMessageAreMetadata"},
	},
	{
		Name: "name-that-is-declared-otherwise", Guarantee: "G5",
		Broken: "A message to an exchange with a line break in its name is sent, and waits for ever.",
		File:   "transport/amqp/limits.go",
		Old:    `	if strings.ContainsAny(name, "\r\n") {`,
		New:    `	if strings.ContainsAny(name, "\x00") {`,
		Test:   Test{"transport/amqp", "TestNameWithALineBreakIsRefused"},
	},
	{
		Name: "first-host-only", Guarantee: "G5",
		Broken: "Only one of several hosts is tried, and while that host is down no event is sent.",
		File:   "transport/amqp/broker.go",
		Old: `		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("connect to %s: %w", b.name, joinInLine(errs))`,
		New: `		if b.config.FrameSize >= 0 {
			break
		}
	}
	return nil, fmt.Errorf("connect to %s: %w", b.name, joinInLine(errs))`,
		Test: Test{"transport/amqp", "TestHostThatIsDownIsPassedOver"},
	},
	{
		Name: "fresh-password-ignored", Guarantee: "G5",
		Broken: "The password of the configured function is not used: once the password in the URI has expired, no event is sent.",
		File:   "transport/amqp/broker.go",
		Old:    `		config.SASL, password = []amqp091.Authentication{&amqp091.PlainAuth{Username: user, Password: secret}}, secret`,
		New:    `		config.SASL = []amqp091.Authentication{&amqp091.PlainAuth{Username: user, Password: password}}`,
		Test:   Test{"transport/amqp", "TestCredentialsAreAskedForAtEachConnect"},
	},
	{
		Name: "second-handler-of-a-queue", Guarantee: "G7",
		Broken: "Two handlers of a process share a queue, and each gets half of its messages.",
		File:   "transport/amqp/subscriber.go",
		Old:    `	if s.groups[queue] != nil {`,
		New:    `	if s.groups[queue] != nil && s.closed {`,
		Test:   Test{"transport/amqp", "TestQueueIsSubscribedToOnce"},
	},
	{
		Name: "acknowledged-kept-behind-a-gap", Guarantee: "G5",
		Broken: "Messages acknowledged behind an unfinished message are kept, and visited again with every acknowledgement.",
		File:   "transport/amqp/acks.go",
		Old: `		if !k.finished {
			gap = append(gap, k)
			continue
		}`,
		New: `		gap = append(gap, k)
		if !k.finished {
			continue
		}`,
		Test: Test{"transport/amqp", "TestAcknowledgementsBehindAGapAreForgotten"},
	},
	{
		Name: "one-timeout-each", Guarantee: "G5",
		Broken: "Each message of a call of Publish waits for a timeout of its own while there is no connection.",
		File:   "transport/amqp/send.go",
		Old:    `		if w.call != nil && w.call.timedOut {`,
		New:    `		if w.call != nil && w.call.timedOut && d < 0 {`,
		Test:   Test{"transport/amqp", "TestPublishOfManyWaitsForOneTimeout"},
		Hang:   true,
	},
	{
		Name: "number-of-a-publish-signed", Guarantee: "G3",
		Broken: "Reserved metadata that the publisher adds behind the signer counts for the signature, which then never fits.",
		File:   "transport/signature/verifier.go",
		Old:    `[]func(name string) bool{func(name string) bool { return alwaysSigned[name] }, transport.IsReserved} {`,
		New:    `[]func(name string) bool{transport.IsReserved} {`,
		Test:   Test{"transport/amqp", "TestSignedMessageIsVerifiedBehindAStockSubscriber"},
	},
	{
		Name: "old-queue-stops-its-publisher", Guarantee: "G5",
		Broken: "A publisher sends nothing to a queue that was declared before the broker was RabbitMQ 4.",
		File:   "transport/amqp/publisher.go",
		Old:    `	p.topology.limitIsSafe = true`,
		New:    `	p.topology.limitIsSafe = config.Window < 0`,
		Test:   Test{"transport/amqp", "TestQueueOfBeforeVersion4IsUsedWhereItIsSafe"},
	},
	{
		Name: "dead-letters-to-nowhere", Guarantee: "G7",
		Broken: "A queue is declared whose dead-letter exchange does not exist: expired messages are dropped.",
		File:   "transport/amqp/topology.go",
		Old:    `	if !there || t.allowLoss {`,
		New:    `	if !there || t.allowLoss || name != "" {`,
		Test:   Test{"transport/amqp", "TestDeadLetterExchangeThatIsMissingIsRefused"},
	},
	{
		Name: "message-that-expires", Guarantee: "G2",
		Broken: "A message that the broker drops after a time is sent.",
		File:   "transport/amqp/send.go",
		Old:    `	if out.pub.Expiration != "" && !p.config.AllowLoss {`,
		New:    `	if out.pub.Expiration == "0" && !p.config.AllowLoss {`,
		Test:   Test{"transport/amqp", "TestMessageThatWouldExpireIsInvalid"},
	},
	{
		Name: "stream-accepted", Guarantee: "G7",
		Broken: "A stream is consumed as a queue is, from its end.",
		File:   "transport/amqp/config.go",
		Old:    `	if c.Queue.Arguments[amqp091.QueueTypeArg] == amqp091.QueueTypeStream && !allowLoss {`,
		New:    `	if c.Queue.Arguments[amqp091.QueueTypeArg] == "none" && !allowLoss {`,
		Test:   Test{"transport/amqp", "TestUnsafeSubscriberIsRefused"},
	},
	{
		Name: "queue-type-left-to-the-broker", Guarantee: "G7",
		Broken: "The type of a queue is left to the broker's default, which may be the wrong type.",
		File:   "transport/amqp/topology.go",
		Old:    `	if _, ok := args[amqp091.QueueTypeArg]; !ok {`,
		New:    `	if _, ok := args[amqp091.QueueTypeArg]; !ok && queueType == Quorum {`,
		Test:   Test{"transport/amqp", "TestDeliveryLimitFollowsTheVersionOfTheBroker"},
	},
	{
		Name: "message-without-its-key-is-handed-out", Guarantee: "G4",
		Broken: "A message for which the function of its key panics is handed out without a key.",
		File:   "transport/amqp/admit.go",
		Old:    `	defer recoverAs("key", &err)`,
		New:    `	defer recoverAs("key", new(error))`,
		Test:   Test{"transport/amqp", "TestMessageWhoseKeyPanicsIsSetAside"},
	},
	{
		Name: "set-aside-on-the-next-channel", Guarantee: "G2",
		Broken: "A delivery that an ended channel set aside is acknowledged on the next channel, where its tag is of another message.",
		File:   "transport/amqp/subscription.go",
		Old: `	if d.from != consumer {
		return
	}
	sub.admitted--`,
		New: `	if d.from == nil {
		return
	}
	sub.admitted--`,
		Test: Test{"transport/amqp", "TestWhatAnEndedChannelSetAsideIsNotAcknowledgedOnTheNext"},
	},
	{
		Name: "foreign-properties-are-lost", Guarantee: "G6",
		Broken: "The properties of a message from another client are not in its metadata.",
		File:   "transport/amqp/codec.go",
		Old:    `!ours && !brief && !isOwnEncoding(d.ContentEncoding) {`,
		New:    `ours && !brief && !isOwnEncoding(d.ContentEncoding) {`,
		Test:   Test{"transport/amqp", "TestPropertiesOfAForeignMessageAreMetadata"},
	},
	{
		Name: "longest-name-is-refused", Guarantee: "G5",
		Broken: "A queue is refused since the name of a second queue, which is not declared, would be too long.",
		File:   "transport/amqp/subscriber.go",
		Old: `	if s.undecodable() {
		checks`,
		New: `	if s != nil {
		checks`,
		Test: Test{"transport/amqp", "TestQueueMayHaveTheLongestName"},
	},
}
