// Package middleware puts an inbox around existing Watermill handlers.
//
// [Inbox] makes a Watermill handler a consumer of a [consumer.Inbox]. The handler stays as it is. A
// copy of a message is acknowledged without running the handler, and returned messages are written
// to the outbox instead of being published:
//
//	mw, err := middleware.Inbox(inbox, middleware.Config{
//		Name:         "reserve",
//		PublishTopic: "stock.reserved",
//		Key:          func(_ string, msg *message.Message) string { return msg.Metadata["order"] },
//	})
//	handler := router.AddConsumerHandler("reserve", "order.placed", subscriber, reserve)
//	handler.AddMiddleware(mw)
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
// New code should use [consumer.Inbox.Handle], where the transaction is a parameter.
//
// # Guarantees
//
// The guarantees are those of package consumer. Returned messages are in the outbox exactly when
// the transaction is committed. Their dispatch IDs are children of the handled message's ID, so a
// handler that runs again emits the same IDs. The router gets no messages to publish.
//
// # Order
//
// A middleware that is added before this one runs outside the inbox: it sees one call per delivery,
// and an error only if nothing could be committed. A middleware that is added afterwards runs
// inside the transaction, once per attempt.
//
//	CorrelationID   inside or outside
//	Recoverer       not needed: panics are counted. Harmless inside
//	Retry           outside only, if at all: the inbox retries by itself. Inside, the handler
//	                would run again in the transaction of the failed attempt, and the effects of
//	                both attempts would be committed
//	Timeout         not needed: use consumer.HandlerConfig.Timeout. Outside, Timeout cuts
//	                short the wait for a database that is down
//	Throttle        outside. Inside, the handler would wait with a transaction open
//	CircuitBreaker  not needed: an inbox waits for its database by itself. Inside, each call that
//	                an open breaker refuses would count as an attempt of its message
//	PoisonQueue     not with an inbox, which keeps dead messages itself. Inside, PoisonQueue would
//	                hide the handler's error, and half of the effects would be committed; outside,
//	                an outage would be taken for poison
//	IgnoreErrors    not inside: it would hide the handler's error
//	Duplicator      outside, to show that copies are harmless. Inside, effects would be doubled
//	InstantAck      never: a message that is acknowledged first is lost in a crash
//	Deduplicator    never: a message would be marked as seen before its handler succeeded
//	DelayOnError    not needed: messages are parked
//
// The first call of [WorkFrom] detects Watermill's Retry, Duplicator, PoisonQueue and IgnoreErrors
// inside the inbox; then every attempt fails with [ErrInside]. Two cases are not detected: a
// middleware of your own that runs its handler more than once, and a handler that never calls
// [WorkFrom], such as a handler that only returns messages. Keep their middlewares outside. With
// [Wrap] every middleware is outside, wherever it was added:
//
//	reserve, err := middleware.Wrap(inbox, middleware.Config{Name: "reserve"}, reserve)
//	router.AddConsumerHandler("reserve", "order.placed", subscriber, reserve)
//
// # Assumptions
//
// One middleware is one consumer. Add it to one handler, with [message.Handler.AddMiddleware], and
// not to the whole router: two handlers under one name would swallow each other's messages. The
// router must run before parked messages are retried; see [consumer.Inbox.Run].
//
// AddHandlersGroup of Watermill's cqrs.EventProcessor adds a handler to the router and does not
// return the handler, so the middleware cannot be added to it. Either give each group a router of
// its own, and add the middleware there with [message.Router.AddMiddleware], or write the group's
// handler as one function around a marshaler, and give the function to [Wrap].
//
// # Limitations
//
// A parked message is handled again without a router: its context then has no handler name and no
// topic of Watermill's. A handler that returns messages needs an inbox with an outbox and
// Config.PublishTopic, whatever topic and publisher the router was given.
package middleware
