package mutants

// wiring is about the form of events on RabbitMQ.
var wiring = []Mutant{
	{
		Name: "index-left-out", Guarantee: "G3",
		Broken: "The index 0 that a publisher leaves out stays away, so that the message is not the event that was written.",
		File:   "transport/amqp/wire_headers.go",
		Old:    `		set(transport.MetaIndex, "0")`,
		New:    `		set(transport.MetaIndex, "")`,
		Test:   Test{"transport/amqp", "TestMetadataArrivesAsItWasSent"},
	},
	{
		Name: "horizon-cut-off", Guarantee: "G3",
		Broken: "A re-send horizon that is not a whole number of seconds after the stamp arrives shortened.",
		File:   "transport/amqp/wire_headers.go",
		Old:    `after <= 0 || after%time.Second != 0 || text`,
		New:    `after <= 0 || text`,
		Test:   Test{"transport/amqp", "TestMetadataArrivesAsItWasSent"},
	},
	{
		Name: "few-headers-for-a-marshaler", Guarantee: "G3",
		Broken: "A custom marshaler gets an event without the names that travel as properties.",
		File:   "transport/amqp/wire_envelope.go",
		Old:    `		return unbrief(d), nil`,
		New:    `		return d, nil`,
		Test:   Test{"transport/amqp", "TestMetadataArrivesAsItWasSent"},
	},
	{
		Name: "return-without-its-number", Guarantee: "G2",
		Broken: "The number of a publish in the header with the stamp is not read, so a return is nobody's, and its event counts as confirmed.",
		File:   "transport/amqp/wire_headers.go",
		Old:    `	_, _, seq, _ := cutBrief(text)`,
		New:    `	_, _, seq, _ := cutBrief(text + "x")`,
		Test:   Test{"transport/amqp", "TestMetadataArrivesAsItWasSent"},
	},
}
