// Package middleware puts an inbox around Watermill handlers that exist
// already.
//
// [Inbox] makes a Watermill handler a consumer of a [consumer.Inbox]: the handler stays
// as it is, a copy of a message is acknowledged without running it, and what it returns
// is written to the outbox instead of being published:
//
//	mw, err := middleware.Inbox(inbox, middleware.Config{
//		Name:         "reserve",
//		PublishTopic: "stock.reserved",
//		Key:          func(_ string, msg *message.Message) string { return msg.Metadata["order"] },
//	})
//	handler := router.AddConsumerHandler("reserve", "order.placed", subscriber, reserve)
//	handler.AddMiddleware(mw)
//
// A handler that changes its database does that in the transaction of its message,
// which [WorkFrom] finds in the message's context:
//
//	w, ok := middleware.WorkFrom[pgx.Tx](msg.Context())
//	_, err := w.DB().Exec(msg.Context(), `UPDATE stock …`)
//
// New code is better off with [consumer.Inbox.Handle], where the transaction is a parameter.
//
// # Guarantees
//
// Those of package consumer. Messages that the handler returns are in the outbox exactly when
// the transaction is committed, under dispatch IDs that are children of the message's,
// so a handler that runs again emits the same. The router is given none of them.
//
// # Order
//
// A middleware that is added before this one runs outside the inbox: it
// sees one call per delivery, and an error only if nothing could be committed. A
// middleware that is added after it runs inside the transaction, once per attempt.
//
//	CorrelationID   inside or outside
//	Recoverer       not needed: panics are counted. Inside it does no harm
//	Retry           outside at most: the inbox retries by itself. Inside it would run the handler
//	                again in the transaction of the attempt that failed, and commit the effects
//	                of both
//	Timeout         not needed: consumer.HandlerConfig.Timeout. Outside it cuts the
//	                waiting for a database that is down
//	Throttle        outside. Inside it would wait with a transaction open
//	CircuitBreaker  not needed: an inbox waits for its database by itself. Inside, what an open
//	                breaker refuses would count as attempts of messages that were not tried
//	PoisonQueue     not beside an inbox, which keeps dead messages itself. Inside it
//	                would hide the error of the handler, and half of its effects would
//	                be committed; outside it would take an outage for poison
//	IgnoreErrors    not inside, for the same reason
//	Duplicator      outside, to see that copies are harmless. Inside it would double the effects
//	InstantAck      never: what is acknowledged first is lost in a crash
//	Deduplicator    never: it marks a message as seen before its handler succeeded
//	DelayOnError    not needed: messages are parked
//
// Retry, Duplicator, PoisonQueue and IgnoreErrors of Watermill are found inside at the first
// [WorkFrom], and every attempt fails with [ErrInside]. Not found are a middleware of your own that
// runs its handler more than once, and one around a handler that never calls [WorkFrom], as one
// that only returns messages: these have to be outside. With [Wrap] everything is outside, wherever
// it was added:
//
//	reserve, err := middleware.Wrap(inbox, middleware.Config{Name: "reserve"}, reserve)
//	router.AddConsumerHandler("reserve", "order.placed", subscriber, reserve)
//
// # Assumptions
//
// One middleware is one consumer, so it is added to one handler, with
// [message.Handler.AddMiddleware] and not for the whole router: two handlers under
// one name would swallow each other's messages. The router that it was added to runs
// before parked messages are taken up; see [consumer.Inbox.Run].
//
// AddHandlersGroup of Watermill's cqrs.EventProcessor adds a handler to the router and does not
// return it, so there is nothing to add the middleware to: give each group a router of its own and
// add it there with [message.Router.AddMiddleware], or make the group's handler yourself, as one
// function around a marshaler, and give it to [Wrap].
//
// # Limitations
//
// When a parked message is handled again there is no router: the message's context has no
// handler or topic name of Watermill's then. A handler that returns messages needs an inbox
// with an outbox and Config.PublishTopic, whatever topic and publisher the router was given.
package middleware
