// Package memory is a transport within one process: topics, named subscriptions, and workers that
// keep the order of each key, without a broker to install. An embedded outbox publishes to it.
//
// A [Broker] is a [transport.Sender] and a Watermill publisher. A [Subscriber] is a Watermill
// subscriber:
//
//	broker, err := memory.New(memory.Config{})
//	stock := broker.Subscriber("stock")   // one name per handler
//	mail := broker.Subscriber("mail")
//
// # Topics and subscriptions
//
// A topic has named subscriptions, like an exchange with queues. Each subscription gets a copy of
// every message. Several Subscribe calls under one name on one topic share the messages. So two
// handlers of one topic need two names; under one name each handler would get a part of the
// messages.
//
// The first Subscribe or SubscribeInitialize makes a subscription, which then outlives its
// consumers: when they end, for example because a router is restarted, its messages wait for the
// next consumer. Only [Broker.Unsubscribe] removes a subscription.
//
// # A message and its outcome
//
// The subscriptions that the topic has when Send is called decide the outcome that Send reports and
// Publish returns:
//
//	Confirmed                 every subscription has acknowledged the message
//	Returned, ErrUnroutable   the topic had no subscription
//	Unavailable, ErrClosed    the broker was closed, or a subscription removed, before
//	Unavailable, ctx's error  the context ended before
//	Invalid                   the message was nil
//
// In each subscription a copy of the message goes through these states:
//
//	waiting ──► ready ──► in flight ──► acknowledged
//	              ▲           │
//	              └─ delayed ◄┘ nack
//
// A copy waits behind an earlier message of its key. It is ready when it may be handed out, in
// flight from the hand-out to a consumer until the answer, and delayed after a nack. The delay
// doubles from Config.MinRedelivery to Config.MaxRedelivery, and is shortened by up to half at
// random. A message that is handed out again is marked: see [transport.Redelivered].
//
// The key is the metadata entry [transport.MetaKey]. At most one message of a key is ready, in
// flight or delayed. So any number of consumers handle the messages of a key singly and in the
// order of sending, while messages of other keys overtake. Messages without a key are handed out in
// order and handled in parallel.
//
// When the context of a Send ends, the message is withdrawn from every subscription except where it
// is in flight. A copy in flight stays with its consumer and keeps blocking its key: if the message
// is sent again, the new copy has to wait. The answer to the old copy has no effect on the outcome.
//
// # Shutdown
//
// A consumer ends when its context is cancelled, or when its subscriber or the broker is closed. It
// closes its channel and gets no further message. Its messages in flight can be acknowledged for
// Config.CloseTimeout; then the subscription hands them to another consumer, marked as redelivered.
// Close waits for this. Stop the relay first, then the router, then the broker: no message is sent
// twice in this order.
//
// # What survives a crash
//
// No message survives. No message has to: without the acknowledgement of every subscription, a
// message was not confirmed, so its outbox still has it. The outbox sends the message again to all
// subscriptions, and inboxes that have acknowledged it recognize the copy.
//
// # Guarantees
//
//   - A message is confirmed only when every subscription of its topic at the time of sending has
//     acknowledged it. Closing, cancelling and forgetting confirm no message.
//   - Messages of one key are handled one at a time, and in order as far as their Sends have not
//     ended early. The exception is a consumer that ends and answers later than
//     Config.CloseTimeout: the next consumer has the message by then.
//   - A slow, failing or stuck message delays only its own key in its own subscription, as long as
//     fewer than Config.InFlight messages are stuck.
//   - A nack never causes a busy loop.
//
// # Assumptions
//
//   - Every subscription that must not miss a message exists before the first message of its topic
//     is sent. A running router has subscribed all of its handlers: start the relay after that, or
//     call SubscribeInitialize first.
//   - Every message that is handed out is acknowledged or nacked in the end.
//   - Payloads are not changed. Copies have their own metadata and share the bytes.
//
// # Limitations
//
//   - One process, and no copy on disk.
//   - Senders bound the number of waiting messages, since they hold each message until its outcome;
//     the broker has no bound of its own. Waiting counts against the context of Send: if a relay
//     keeps more messages under way than the handlers manage in its send timeout, it sends the rest
//     again.
//   - Publish waits for handlers. A handler that publishes to its message's own key, and waits for
//     the outcome, waits for itself until the message's context ends. Handlers emit through an
//     outbox.
//   - The outcome couples subscriptions: while one subscription does not acknowledge a message, the
//     sender keeps the message, and may send it to all subscriptions again.
package memory
