package mutants

// connecting is about connections to RabbitMQ, and what is asked of the broker.
var connecting = []Mutant{
	{
		Name: "bad-queue-shares-on", Guarantee: "G5",
		Broken: "A queue whose message ends the connection takes that of all topics, again and again.",
		File:   "transport/amqp/links.go",
		Old:    `	if l.lostAgain() && l.losses >= manyLosses {`,
		New:    `	if l.lostAgain() && l.losses > 1<<30 {`,
		Test:   Test{"transport/amqp", "TestMessageThatEndsItsConnectionHurtsNoOtherTopic"},
	},
	{
		Name: "silent-queue-shares-on", Guarantee: "G5",
		Broken: "A queue that leaves a request unanswered stays with the others, whose connection it ends.",
		File:   "transport/amqp/links.go",
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
		Broken: "What RabbitMQ says of a delivery counts as metadata of the message.",
		File:   "transport/amqp/codec.go",
		Old:    `		case !ofTheBroker(name):`,
		New:    `		case !ofTheBroker(name) || name == "x-acquired-count":`,
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
		Broken: "Of several hosts one is tried, and while it is down nothing is sent.",
		File:   "transport/amqp/broker.go",
		Old:    `		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("connect to %s: %w", b.name, joined(errs))`,
		New: `		if b.config.FrameSize >= 0 {
			break
		}
	}
	return nil, fmt.Errorf("connect to %s: %w", b.name, joined(errs))`,
		Test: Test{"transport/amqp", "TestHostThatIsDownIsPassedOver"},
	},
	{
		Name: "fresh-password-ignored", Guarantee: "G5",
		Broken: "The password that a function has given is not used: once that in the URI has expired, nothing is sent.",
		File:   "transport/amqp/broker.go",
		Old:    `		config.SASL, password = []amqp091.Authentication{&amqp091.PlainAuth{Username: user, Password: secret}}, secret`,
		New:    `		config.SASL = []amqp091.Authentication{&amqp091.PlainAuth{Username: user, Password: password}}`,
		Test:   Test{"transport/amqp", "TestCredentialsAreAskedForAtEachConnect"},
	},
}
