// Package telemetry traces events from the transaction that writes them to the handler that applies
// them, and measures outboxes and inboxes, with the OpenTelemetry API. It is a module of its own:
// who does not import it has nothing of OpenTelemetry. It brings no SDK and no exporter; those are
// the service's.
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
//	      └─ enqueue …         what the handler writes
//
// The context of the enqueue span is kept in the row and travels with every copy of the message, as
// W3C trace context. It is what the semantic conventions call the creation context. Spans of relays
// and handlers are its children, however much later, in however many processes and attempts they
// come. They are siblings, and a relay does not put a context of its own into the message: a signed
// message must arrive as it was signed, and a replay is not the child of the first delivery. A
// handler of several messages has one span with a link to each. A span that is there already when a
// message is handled, of a middleware for example, is the parent if it belongs to the same trace;
// otherwise it is linked.
//
// An event without trace context begins a trace with its relay span, and another one
// with its handle span.
//
// The name of an operation, its destination, the dispatch ID and the correlation ID become
// attributes, under the names of the semantic conventions for messaging. Payloads, headers and keys
// never do. What an error says becomes the description of a span's status, cut at 1 KiB, as in the
// log: keep secrets out of the errors of handlers.
//
// # Instruments
//
// See docs/telemetry.md for all of them, with units and attributes.
//
// What is read from the database is read once for each collection of a reader, by the queries of
// producer.Outbox.Stats and consumer.Handler.Stats, which stay cheap on large tables: at most four
// at once, and all of them within Config.StatsTimeout. What has not answered by then has no values
// in that collection, which goes on without it, and is not asked again before it has answered.
//
// # Guarantees
//
// Nothing here decides what is sent or applied: order, outcomes and pipelining are those of what is
// wrapped, and a collector that is down changes nothing. A [transport.Sender] stays one.
//
// # Limitations
//
// A span ends when the code that it is about returns: an enqueue span does not tell whether the
// transaction was committed, a handle span does not either. The counters of outcomes do. Baggage
// does not travel.
package telemetry
