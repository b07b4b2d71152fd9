// Package telemetry traces events from the transaction that writes them to the handler that applies
// them, and measures outboxes and inboxes, with the OpenTelemetry API. The package is a module of
// its own: a service that does not import it gets no dependency on OpenTelemetry. The SDK and the
// exporter are the service's.
//
//	tel, err := telemetry.New(telemetry.Config{System: "rabbitmq"})
//
//	_, err = tel.Write(ctx, w, event)                              // instead of w.Write(ctx, event)
//	relay, err := relay.New(outbox, tel.Publisher(publisher), cfg)
//	ship, err := inbox.Handle("ship", telemetry.Handler(tel, "warehouse/ship", shipOrder), cfg)
//
//	err = tel.WatchOutbox(outbox.Name(), outbox)
//	err = tel.WatchConsumer(ship)
//
// # Spans
//
//	your span (of a request)
//	└─ enqueue order.placed    PRODUCER, [Telemetry.Write], in your transaction
//	   ├─ relay order.placed   CLIENT, [Telemetry.Publisher], until the transport has confirmed it
//	   └─ handle order.placed  CONSUMER, [Handler], one run of the handler
//	      └─ enqueue …         the events that the handler writes
//
// The context of the enqueue span is kept in the row, and travels with every copy of the message as
// W3C trace context. The semantic conventions call it the creation context. Spans of relays and
// handlers are children of the enqueue span, in any process and attempt, however late. They
// are siblings: a relay does not put its own context into the message, because a signed message
// must arrive as it was signed, and a replay is not a child of the first delivery. A handler of
// several messages has one span with a link to each message. A span that already exists when a
// message is handled, such as a span of a middleware, is the parent if it belongs to the same
// trace, and otherwise is linked.
//
// An event without trace context begins one trace with its relay span, and another trace with its
// handle span.
//
// The operation, its destination, the dispatch ID and the correlation ID become attributes, under
// the names of the semantic conventions for messaging. Payloads, headers and keys never do. The
// text of an error becomes the description of a span's status, cut at 1 KiB, as in the log: keep
// secrets out of the errors of handlers.
//
// # Instruments
//
// docs/telemetry.md lists all instruments with their units and attributes.
//
// The states of databases are read once per collection of a reader, by the queries of
// producer.Outbox.Stats and consumer.Handler.Stats, which stay cheap on large tables. At most four
// databases are read at once, and all reads together take at most Config.StatsTimeout. The
// collection goes on without a late read: its metrics have no values in this collection, and the
// database is not read again before the late read has ended.
//
// # Guarantees
//
// The package never decides what is sent or applied. Wrapped publishers and handlers keep their
// order, outcomes and pipelining, and a collector that is down changes nothing. A wrapped
// [transport.Sender] is still a Sender.
//
// # Limitations
//
// A span ends when the measured code returns: neither an enqueue span nor a handle span tells
// whether the transaction was committed. The counters of outcomes do. Baggage does not travel.
package telemetry
