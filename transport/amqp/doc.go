// Package amqp publishes to RabbitMQ and consumes from it. It takes the
// configuration of watermill-amqp, so existing topologies carry over, and
// interoperates with watermill-amqp's own publisher and subscriber in both
// directions.
//
// [Publisher] is a Watermill publisher and a [transport.Sender]: many messages
// are under way at once and each gets an outcome of its own. [Subscriber] is a
// Watermill subscriber that keeps many messages in flight and those of one key
// in order.
//
//	config := amqp.DurablePubSub("amqp://user:password@host:5672/vhost", "inventory")
//	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: config})
//	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: config})
//
// The constructors do no I/O and start no goroutine. A Publisher connects when
// it is first used, or by [Publisher.Connect]; a Subscriber when it subscribes.
// Close ends what they started and waits for it.
//
// # A publish
//
// A message is checked against the limits of the protocol, then written to a
// channel in confirm mode, always with the mandatory flag, under a number that
// no other publish has. Its slot in the window is free again when the broker
// has answered:
//
//   - a confirm, and nothing was returned before it: [transport.Confirmed];
//   - a return, then a confirm: [transport.Returned], no queue took the message;
//   - a nack: [transport.Refused], as by a full queue with reject-publish;
//   - a channel or connection exception: by its code [transport.Invalid], [transport.Refused] or,
//     for an exchange that is missing, [transport.Returned], or with [Declare]
//     [transport.Unavailable]. Of several messages that were unanswered, the culprit is found
//     before anything else is published: they are published again one by one, each followed by a
//     request that the broker answers when it has handled the message;
//   - the connection was lost: [transport.Unavailable], the broker may have it.
//
// RabbitMQ sends a return before its confirm. The listener for returns is
// buffered beyond the window and emptied by the one goroutine that judges,
// after it saw the confirm and before it decides, so a return is never late.
//
// When the context of a message ends, or ConfirmTimeout has passed since it was
// written, it is reported as unavailable at once; the others are not affected. If
// the broker has answered nothing at all in that time the connection is cut,
// since such a broker cannot be told from one that is gone, and all that was
// unanswered is unavailable. If it answers for other messages the connection
// stays: a queue that has lost its leader does not stop the others. While the
// broker blocks the connection, for memory or disk, messages are reported as
// unavailable with [ErrBlocked] and the connection stays, so that nothing is sent
// again and again into an alarm.
//
// What was declared is forgotten with its channel and when a message comes back
// as unroutable, and declared again before the next publish, half a second later in the
// second case: by then the broker has cancelled the consumers of a queue that was deleted.
//
// # A delivery
//
// Up to SubscriberConfig.InFlight messages are handed out before the first of
// them is acknowledged. A message with a key (the metadata
// [transport.MetaKey], or what SubscriberConfig.Key returns) is handed out when
// the one before it of the same key is acknowledged; without a key there is no
// order beyond that of the first hand-out. Set InFlight to 1, or return one key
// for all, for one total order. The broker delivers up to SubscriberConfig.Prefetch messages,
// so that those which wait for an earlier one of their key leave room for other keys.
//
// Acknowledgements go to the broker in bulk for the contiguous finished prefix
// of what this channel delivered, and singly beyond a gap. They never cross to
// another channel: tags start again at 1 there.
//
// Of a batch, which is one message of the broker with several of ours, each is handed out,
// nacked and set aside by itself, in its place in the order. The broker is told when all
// are finished. When the channel ends before that, it delivers all of them again: one that
// was acknowledged may come once more after a later one of its key, whose batch was
// finished. It prefetches up to Prefetch batches, which wait in memory.
//
// A Nack is a delivery again from here, after a backoff, with
// [transport.Redelivered] set; later messages of that key wait. It never goes to
// the broker as a requeue, which would put the message behind others.
//
// On Close, and when the context of Subscribe ends, nothing more is handed out.
// Messages in flight have SubscriberConfig.CloseTimeout to be acknowledged, those
// are acknowledged to the broker, and the channel is closed, which returns the
// rest in their order.
//
// The context of a message is derived from the one given to Subscribe. It ends
// when the message is acknowledged or nacked, when the context of Subscribe
// ends, and when Close has stopped waiting: during Close handlers keep a live
// context.
//
// # Connections
//
// The subscriptions of a Subscriber share a connection, with a channel for each queue. A message
// that the client cannot read, as one with more than 8192 headers, ends the connection whenever it
// is delivered, and so does a queue that leaves a request unanswered for 30 seconds, as one without
// a leader. A queue that is known to do so gets a connection of its own. Otherwise the queues of a
// connection that is lost three times, shortly after it was opened, part into four, until the one
// that ends its connection is alone with it, and is named in the log. The others are redelivered
// what they had in flight until then, and go on undisturbed. A Subscriber has 16 connections at
// most. [Subscriber.Health] tells of each queue whether it is consumed, and why not.
//
// Hosts names the nodes of a cluster, which are tried in turn from any of them on, at the first
// connect and at each one after a loss. Credentials is a function that gives user and password at
// each connect, for those that expire:
//
//	config := amqp.PublisherConfig{
//		AMQP:        amqp.DurablePubSub("amqps://rabbit1/vhost", "inventory"),
//		Hosts:       []string{"rabbit1", "rabbit2", "rabbit3"},
//		Credentials: func(ctx context.Context) (user, password string, err error) { return vault.Rabbit(ctx) },
//	}
//
// # Envelopes
//
// A message has a dozen headers, and RabbitMQ works on each: with them a queue takes a quarter
// fewer messages than with properties of up to 64 bytes (3.10; see docs/performance.md). With
// PublisherConfig.Envelope, all metadata travels in the body, as a URL query in a line of its own
// before the payload. The content-encoding property is "boxpair", and the dispatch ID is in the
// message-id property only.
//
//	publish-seq=42&index=0&key=order-7&producer=orders&source=order/7&stamp=2026-11-20T12:00:00Z&version=3&_tenant=acme
//	{"total":120}
//
// Names are without "boxpair-", and those that have no such prefix follow an underscore.
// publish-seq is a number that tells the publisher which message the broker has returned; nobody
// else needs it.
//
// A [Subscriber] opens envelopes without being told, for a Marshaler of one's own too, and takes
// messages with headers beside them. So update consumers before producers, and go back with them
// only when no envelope is left. Headers that are there all the same, as those of the broker, go
// before the envelope's. An envelope that cannot be opened is handed out as it is, with
// [transport.MetaEnvelope], and inboxes refuse it; where messages are read by a Marshaler of one's
// own, it is set aside.
//
// Leave Envelope out where others read. A stock watermill-amqp subscriber hands out messages
// without UUID and with the envelope as payload, which inboxes refuse, and a program of another
// kind that goes by the message ID takes the envelope for the payload. An exchange that routes by
// headers finds none.
//
// # Messages of other programs
//
// The headers of a message are its metadata, as text: numbers in decimal, times in RFC 3339, bytes
// in base64 if they are no UTF-8, tables and arrays as JSON. What is not the message's stays out:
// headers of RabbitMQ about a delivery (x-delivery-count, x-acquired-count, x-stream-offset) and
// about how it was dead-lettered (x-death, x-first-death-…, x-last-death-…). A Marshaler of one's
// own is given the latter. The dispatch ID is Watermill's header, or else the message-id property.
//
// A message that no [Publisher] has sent has metadata for its other properties, where no header has
// the name: content-type is [transport.MetaContentType], type is [transport.MetaType],
// correlation-id is [transport.MetaCorrelationID], and the rest [PropertyReplyTo], [PropertyAppID],
// [PropertyUserID], [PropertyContentEncoding], [PropertyTimestamp], [PropertyPriority] and
// [PropertyExpiration].
//
// RabbitMQ takes a line break out of the name of an exchange or a queue that is declared, and finds
// none with it. Such names are refused, and a message to one is Invalid.
//
// # Batches
//
// The broker's work is with AMQP messages, hardly with their bytes. With PublisherConfig.BatchSize,
// besides Envelope, up to so many messages of one exchange and routing key are published as one, as
// Kafka's producers and those of RabbitMQ's streams (sub-entry batching) do:
//
//   - As long as fewer than four AMQP messages are unconfirmed, a message is published at once and
//     alone. Those that come while there are more are gathered by route, for 10 ms at most, and
//     published when there is an answer, or a batch is full. So few messages have no delay, and
//     many cost little.
//   - A batch is confirmed, returned, refused or lost as a whole, and so is each message in it. A
//     full queue counts it as one.
//   - [Publisher.SendBatch] has messages go into one batch on purpose. A relay does so with the
//     next events of a key: they keep their order whatever happens to the batch, so none has to
//     wait for the confirm of the one before.
//
// The content-encoding property is "boxpair-batch", and message-id is that of the first message.
// The body has a line with the number of the publish, then for each message a line with its ID,
// percent-encoded, and the length of its envelope in bytes, and the envelope:
//
//	publish-seq=42
//	0b0d5d2e-6f29-5c9b-8f5e-1f6f0c7d9f10 55
//	publish-seq=42&key=order-7&producer=orders
//	{"total":120}
//	…
//
// A [Subscriber] hands the messages out one by one, like others; see "A delivery". After a crash, a
// shutdown or a lost connection those of a batch that was not finished come again, which an inbox
// knows. Numbers of messages that the broker tells are of batches. All else that is said of
// envelopes holds for batches: update consumers first.
//
// # CloudEvents
//
// With PublisherConfig.CloudEvents, messages have these headers besides their own, as in the binary
// mode of CloudEvents 1.0. That has an official binding for AMQP 1.0 only, and none for AMQP 0-9-1,
// which this package speaks: the names are those of the former, which is how RabbitMQ hands the
// headers to a client of AMQP 1.0, too. The payload and the content-type property, which is
// datacontenttype, are what they are without.
//
//	cloudEvents_specversion  1.0
//	cloudEvents_id           the dispatch ID
//	cloudEvents_source       "/" and the producer's name, percent-encoded
//	cloudEvents_type         the event's type, or the topic if it has none
//	cloudEvents_subject      the event's source, as order/42, if it has one
//	cloudEvents_time         when the event occurred, to a second: its OccurredAt, or when it was written
//	cloudEvents_partitionkey the event's key, if it has one
//	cloudEvents_traceparent  its W3C trace context, if it has one, with cloudEvents_tracestate
//
// A header of the event's own with one of these names goes first, so an event may have another
// subject, or attributes of extensions. Consumers of this library work as without, and handlers
// find the headers in the metadata. A signature does not cover them: where a consumer verifies,
// they are not shown. Messages of others that are CloudEvents are handled like all messages of
// others: by the UUID in their message ID, or in Watermill's header.
//
// # Partitioned topics
//
// A queue uses one core of the broker, and order wants one consumer for it. A
// partitioned topic is spread over P queues by the key of the event, so both are
// there P times and each key keeps its order. Set Partitions in [PublisherConfig] and
// [SubscriberConfig]:
//
//   - The publisher sends to a direct exchange; the routing key is the shard of the
//     event's key, 0 to 63 as idgen.Shard has it, behind the topic's own key and a
//     dot if it has one. An event without a key goes by its dispatch ID.
//   - The consumer has the queues <queue>.1ofP to <queue>.PofP. Shard s is bound to
//     the one with the number s mod P + 1. Powers of two share the shards evenly; a
//     key that has most of the events still has one queue.
//   - Each is consumed on a channel of its own, with InFlight messages, and has
//     x-single-active-consumer: processes take it over from each other, and what was not
//     acknowledged comes first again, in its order.
//   - The broker leaves all queues to the process that came first. Each process
//     counts the others, and gives back, with nothing in flight, what exceeds its
//     share of the partitions that have messages.
//   - The queue <queue> stays empty. Its x-max-length is P, and the processes are
//     counted by their consumers of it.
//
// All of this is for durable queues, pub/sub and topic exchanges: [DurableQueue] (the
// exchange is named like the queue), [DurablePubSub] and [TopicExchange] (subscribed to
// by the topics' names, not by patterns). An exchange is partitioned with all its topics
// and consumers or not at all; consumers of one topic may have different numbers, as
// the publisher only knows shards.
//
// Who disagrees is told by the broker. The exchange has another type without
// partitions; the queue <queue> has another length with another P, and none without.
// Subscribe fails, and messages are unavailable, with [ErrPartitions] or with
// what the broker says of the exchange, and the events stay in their outbox. With [Passive] the
// queues of another P do not exist, which is an error too, and the exchange's type
// cannot be checked; with [NoTopology] nothing is.
//
// P cannot be changed by setting it: an event would overtake those of its key in the old
// queue. [Repartition] changes it, once the old queues are empty.
//
// # TLS
//
// A URI that begins with amqps:// asks for TLS. The broker's certificate must be for the
// host in the URI and signed by an authority that the machine trusts, or by one in RootCAs:
//
//	roots := x509.NewCertPool()
//	roots.AppendCertsFromPEM(pem) // the authority's certificate
//	config := amqp.DurablePubSub("amqps://user:password@host:5671/vhost", "inventory")
//	config.Connection.TLSConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
//
// Certificates of the client's own, for a broker with verify_peer, go into Certificates there.
// A broker with another certificate is not used: the error names the certificate, and neither
// password nor message has been sent. InsecureSkipVerify is refused, since whoever answers under
// the broker's address would be given both.
//
// # Delivery limits
//
// A quorum queue of RabbitMQ 4 drops a message when it has been delivered 20 times, which a
// consumer that crashes brings about. Queues are declared with x-delivery-limit -1 there, which is
// none, and without the argument on RabbitMQ 3, where -1 would drop after one failure.
//
// A queue keeps its arguments. One that was made on RabbitMQ 3, or declared by someone else, has a
// limit once the broker is version 4, and a subscriber refuses it. A publisher uses it as it is. To
// go from 3 to 4 with the queues that are there, set DeliveryLimitIsSafe for the subscribers; then
// upgrade the broker, and lift the limit by a policy:
//
//	rabbitmqctl set_policy --apply-to queues boxpair '.*' '{"delivery-limit": -1}'
//
// A policy with a limit goes before x-delivery-limit -1, so it is the policies that count; see
// "Assumptions" and [CheckPolicies].
//
// # What survives a crash
//
//	publisher, before the confirm     unknown: the message is sent again by who keeps it
//	publisher, after the confirm      the broker has it, on disk in a quorum queue
//	subscriber, before the ack        the broker delivers it again, marked as redelivered
//	subscriber, acked, not yet sent   the same; a duplicate of what was handled
//	broker, between both              quorum queues keep what was confirmed
//
// # Guarantees
//
//   - What no queue took is never reported as confirmed.
//   - Each message given to Send gets exactly one outcome, within its context
//     and, once written, within about ConfirmTimeout.
//   - Messages of one goroutine are written in the order of its calls to Send, with BatchSize those
//     of one route.
//   - The subscriber hands out no message that the broker did not deliver: none
//     when a queue is deleted or a connection breaks.
//   - A message that the marshaler cannot read is kept: it goes to another queue,
//     confirmed, before it is acknowledged.
//   - No error and no log contains the password of the URL or a payload.
//
// # Assumptions
//
//   - Queues are durable and messages persistent. Other configuration is refused
//     unless AllowLoss is set.
//   - Each handler has a queue of its own: those of one queue share its messages.
//   - One consumer at a time reads a queue where order matters, as with
//     x-single-active-consumer. With several, the broker spreads the messages of a
//     key over them. Partitioned topics have it by themselves.
//   - Handlers finish well within the broker's consumer timeout, 30 minutes by default. It closes
//     the channel, and everything on it is delivered again. Where the publisher has BatchSize, so
//     does what comes in one AMQP message: up to BatchSize handlers one after another, with the
//     pauses between their attempts.
//   - No policy of the broker sets delivery-limit, max-length, message-ttl or expires for the
//     queues: it goes before what they are declared with, drops messages, and cannot be seen by a
//     client. Whoever may set policies can bring that about at any time. [CheckPolicies] tells what
//     is in force, by the management API.
//   - With [Passive] and [NoTopology] the operator has seen to what a client cannot
//     read: that no delivery limit, length limit or TTL drops messages.
//
// # Limitations
//
// Mandatory sees whether at least one queue took the message. It does not see
// that one of two queues of a fan-out is missing, and an alternate exchange
// takes what is unroutable, so the broker confirms it. Declare the queues from
// the publisher's side (PublisherConfig.Queues), and watch the queue of an
// alternate exchange.
//
// When an exchange is deleted, its bindings go with it. The publisher declares
// the exchange again, and the bindings only of the queues that it was told; a
// subscriber that is connected does not notice and binds at its next start.
//
// A message that can be neither read nor set aside, and one that a handler nacks,
// keep their place among the messages in flight. As many of them as InFlight stop
// the subscription.
//
// RabbitMQ answers a declaration before the queue is certain to survive. A broker of one node with
// Mnesia (seen with 3.10) that is killed within two seconds of it may come back without the queue
// or the binding, and what was confirmed into that queue is gone with it. Declare queues before the
// first event, in a deployment's own step, and let a cluster hold them.
//
// Confirms of classic queues do not wait for the disk. Quorum queues, the
// default, do.
package amqp
