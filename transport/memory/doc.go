// Package memory is a transport within one process: topics, named subscriptions
// and workers that keep the order of each key, without a broker to install. It
// is what an embedded outbox publishes to.
//
// A [Broker] is a [transport.Sender] and a Watermill publisher. A [Subscriber]
// is a Watermill subscriber:
//
//	broker, err := memory.New(memory.Config{})
//	stock := broker.Subscriber("stock")   // one name per handler
//	mail := broker.Subscriber("mail")
//
// # Topics and subscriptions
//
// A topic has named subscriptions, like an exchange with queues. Each gets its
// own copy of every message. Several Subscribe calls under one name on one topic
// share the work: each message goes to one of them. So two handlers of one topic
// need two names; under one name they would take each other's messages.
//
// A subscription comes to be with its first Subscribe or SubscribeInitialize and
// outlives it: when its consumers have gone, because a router is restarted, its
// messages wait for the next one. Only [Broker.Unsubscribe] removes it.
//
// # A message and its outcome
//
// What Send reports, and Publish returns, is decided by the subscriptions that
// the topic had at the time of the call:
//
//	Confirmed              every one of them has acknowledged the message
//	Returned, ErrUnroutable   there was none
//	Unavailable, ErrClosed    the broker was closed, or a subscription removed, before
//	Unavailable, ctx's error  the context ended before
//	Invalid                there was no message
//
// In each subscription a copy of the message goes through these states:
//
//	waiting ──► ready ──► in flight ──► acknowledged
//	              ▲           │
//	              └─ delayed ◄┘ nack
//
// It waits behind an earlier message of its key; is ready when it may be handed
// out; is in flight when a consumer has it, until it answers; is delayed after a
// nack, for a time that doubles from Config.MinRedelivery to Config.MaxRedelivery
// and is shortened by up to half at random. A message that is handed out again
// says so: see [transport.Redelivered].
//
// The key is the metadata entry [transport.MetaKey]. A key has at most one
// message beyond waiting, so its messages are handled one at a time and in the
// order in which they were sent, by however many consumers. Other keys pass it
// by. Messages without a key are handed out in order and handled in parallel.
//
// When the context of a Send ends, the message is taken out of every
// subscription that does not have it in flight. A copy in flight stays with its
// consumer and still holds its key, so that the same message sent again cannot
// run beside it; its answer changes nothing any more.
//
// # Shutdown
//
// A consumer that ends (its context was cancelled, its subscriber or the broker
// closed) closes its channel and gets nothing more. What it has in flight it can
// still acknowledge for Config.CloseTimeout; then that goes back to its
// subscription, to be handed to another consumer as redelivered. Close waits for
// this. Stop in the order relay, router, broker: then nothing is sent twice.
//
// # What survives a crash
//
// Nothing, and nothing has to: a message that was not acknowledged by every
// subscription was not confirmed, so it is still in the outbox that it came
// from. What was acknowledged by some of them is sent to all of them again, and
// their inboxes tell the copies.
//
// # Guarantees
//
//   - A message is confirmed only when every subscription that its topic had when
//     it was sent has acknowledged it. Closing, cancelling and forgetting confirm
//     nothing.
//   - Messages of one key are handled one at a time, and in order as far as their
//     Sends have not ended early. A consumer that ends and answers later than
//     Config.CloseTimeout is the exception: the next has the message by then.
//   - A slow, failing or stuck message delays its own key in its own subscription
//     and nothing else, as long as fewer than Config.InFlight are stuck.
//   - A nack never causes a busy loop.
//
// # Assumptions
//
//   - Every subscription that must not miss a message exists before the first
//     message of its topic is sent. A router that runs has subscribed all of its
//     handlers: start the relay after that, or call SubscribeInitialize first.
//   - Every message that is handed out is acknowledged or nacked in the end.
//   - Payloads are not changed. Copies have their own metadata and share the bytes.
//
// # Limitations
//
//   - One process. Nothing is kept on disk.
//   - The number of messages that wait is bounded by those who send, who hold
//     each of them until its outcome, and not by the broker. The time in the
//     queue counts against the context of Send: a relay that keeps more under way
//     than the handlers manage in its send timeout sends the rest again.
//   - Publish waits for handlers. A handler that publishes to a key that it is
//     itself handling, and waits, waits for itself until the message's context
//     ends. Handlers emit through an outbox.
//   - Subscriptions are coupled through the outcome: while one of them does not
//     acknowledge a message, its sender has to keep it and may send it to all
//     again.
package memory
