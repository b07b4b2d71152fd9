// Package middleware puts an inbox around existing Watermill handlers.
//
// [Router] makes each handler of a router a consumer of a [consumer.Inbox]. The handlers stay as they
// are. A copy of a message is acknowledged without running the handler, and returned messages are
// written to the outbox instead of being published:
//
//	router.AddHandler("reserve", "order.placed", subscriber, "stock.reserved", publisher, reserve)
//	router.AddPlugin(middleware.Router(inbox, middleware.RouterConfig{
//		Publisher: producer.PublisherConfig{
//			Key: func(_ string, msg *message.Message) string { return msg.Metadata["order"] },
//		},
//	}))
//
// [Wrap] is the same for one function, which may then be a handler of any router.
//
// A handler changes its database in the transaction of its message, which [WorkFrom] finds in the
// message's context:
//
//	w, ok := middleware.WorkFrom[pgx.Tx](msg.Context())
//	_, err := w.DB().Exec(msg.Context(), `UPDATE stock …`)
//
// A publisher of the outbox ([producer.Outbox.Publisher]), or an event bus over it, publishes in
// the same transaction, with the message's context.
//
// New code should use [consumer.Inbox.AddHandler], where the transaction is a parameter.
//
// # Guarantees
//
// The guarantees are those of package consumer. Returned messages are in the outbox exactly when
// the transaction is committed. Their dispatch IDs are children of the handled message's ID, so a
// handler that runs again emits the same IDs. The router gets no messages to publish.
//
// # Middlewares
//
// The inbox is the innermost middleware, wherever the others were added: a middleware sees one call
// per delivery, an error only if nothing could be committed, and no returned messages. With an inbox, some middlewares of
// Watermill have nothing to do, or do harm:
//
//	Recoverer, DelayOnError  not needed: panics are counted, and messages are parked
//	Retry                    not needed: the inbox retries by itself
//	Timeout                  not needed: use consumer.HandlerConfig.Timeout. Timeout cuts short the
//	                         wait for a database that is down
//	CircuitBreaker           not needed: an inbox waits for its database by itself
//	PoisonQueue              never: an inbox keeps dead messages itself, and PoisonQueue would take
//	                         an outage for poison
//	InstantAck               never: a message that is acknowledged first is lost in a crash
//	Deduplicator             never: a message would be marked as seen before its handler succeeded
//	Duplicator               harmless: shows that copies have no effects
//
// A middleware that is part of the handler's function, as in wm.Retry{}.Middleware(reserve), is inside
// the transaction. A middleware that runs the handler again would have the effects of both runs
// committed, and a middleware that hides its error half of the effects. The first call of [WorkFrom]
// detects Watermill's Retry, Duplicator, PoisonQueue and IgnoreErrors there; then every attempt fails
// with [ErrInside]. Not detected are a middleware of your own that runs its handler more than once, a
// handler that never calls [WorkFrom], such as a handler that only returns messages, and what hides
// errors by itself: leave AckCommandHandlingErrors of Watermill's command processor, and
// AckCommandErrors of requestreply, at false for handlers that change the database.
//
// # Assumptions
//
// All handlers and middlewares are added before the router starts, and plugins that add some before
// the plugin of [Router]. The router must run before parked
// messages are retried; see [consumer.Inbox.Run].
//
// # Limitations
//
// A parked message is handled again without a router: its context then has no handler name and no
// topic of Watermill's. A handler that returns messages needs an inbox with an outbox. The publisher
// that a router was given for them gets none.
package middleware
