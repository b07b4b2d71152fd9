// Package amqp publishes to RabbitMQ and consumes from it. Its configuration is that of
// watermill-amqp, so existing topologies carry over. It interoperates with watermill-amqp's
// publisher and subscriber in both directions.
//
// [Publisher] is a Watermill publisher and a [transport.Sender]: many messages are under way at
// once, and each gets an outcome of its own. [Subscriber] is a Watermill subscriber that keeps many
// messages in flight, and the messages of one key in order.
//
//	config := amqp.DurablePubSub("amqp://user:password@host:5672/vhost", "inventory")
//	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: config})
//	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: config})
//
// The constructors do no I/O and start no goroutine. A Publisher connects at its first use, or by
// [Publisher.Connect]; a Subscriber connects when it subscribes. Close ends their goroutines and
// waits for them.
//
// # A publish
//
// A message is checked against the limits of the protocol, then written to a channel in confirm
// mode, with the mandatory flag and under a number that no other publish has. Its slot in the
// window is free again when the broker has answered:
//
//   - a confirm without an earlier return: [transport.Confirmed];
//   - a return, then a confirm: [transport.Returned], since no queue took the message;
//   - a nack: [transport.Refused], for example by a full queue with reject-publish;
//   - a channel or connection exception: by its code [transport.Invalid], [transport.Refused] or,
//     if the exchange is missing, [transport.Returned], or with [Declare] [transport.Unavailable].
//     If several messages were unanswered, the cause is found before new messages are published:
//     the unanswered messages are published again singly, and a request follows each message. The
//     answer to the request means that the broker has handled the message;
//   - a lost connection: [transport.Unavailable], and the broker may have the message.
//
// RabbitMQ sends a return before its confirm. Returns are buffered in a channel that has room for
// more messages than the window. The goroutine that judges outcomes empties the channel after
// seeing the confirm and before deciding, so a return is never late.
//
// A message is reported as unavailable when its context ends, or when ConfirmTimeout has passed
// since it was written; other messages are not affected. If the broker has answered no message in
// that time, the connection is cut, since such a broker cannot be told from a dead one, and all
// unanswered messages are unavailable. If the broker answers other messages, the connection stays:
// a queue without a leader does not stop other queues. While the broker blocks the connection,
// because memory or disk space runs out, messages are reported as unavailable with [ErrBlocked].
// The connection stays then, so that messages are not sent again and again into an alarm.
//
// A declared topology is forgotten with its channel, and when a message is returned as unroutable.
// It is declared again before the next publish; after a return, half a second later. By then the
// broker has cancelled the consumers of a deleted queue.
//
// # A delivery
//
// Up to SubscriberConfig.InFlight messages are handed out before the first of them is acknowledged.
// A message with a key (the metadata [transport.MetaKey], or the result of SubscriberConfig.Key) is
// handed out when the message before it with the same key is acknowledged. Messages without a key
// have no order beyond that of their first hand-out. For one total order, set InFlight to 1, or
// return one key for all messages. The broker delivers up to SubscriberConfig.Prefetch messages, so
// that messages waiting for an earlier message of their key leave room for other keys.
//
// Acknowledgements go to the broker in bulk for the contiguous finished prefix of a channel's
// deliveries, and one by one beyond a gap. They are never sent on another channel, where delivery
// tags start again at 1.
//
// A batch is one AMQP message with several messages of a publisher. Each message is handed out,
// nacked and set aside separately, at its place in the order. The batch is acknowledged when all of
// its messages are finished. If the channel ends before that, the broker delivers all of them
// again: an acknowledged message may come once more after a later message of its key, whose batch
// was finished. The broker prefetches up to Prefetch batches, which wait in memory.
//
// After a nack, the subscriber delivers the message again itself, after a backoff and with
// [transport.Redelivered] set; later messages of the key wait. It never requeues a message at the
// broker, which would put the message behind later ones.
//
// On Close, and when the context of Subscribe ends, no further message is handed out. Messages in
// flight have SubscriberConfig.CloseTimeout to be acknowledged. Then the subscriber sends the acks
// and closes the channel, which returns the unfinished messages in order.
//
// The context of a message is derived from the context given to Subscribe. It ends when the message
// is acknowledged or nacked, when the context of Subscribe ends, and when Close has stopped
// waiting: during Close handlers keep a live context.
//
// # Connections
//
// The subscriptions of a Subscriber share a connection, with a channel for each queue. Two things
// end a connection again and again: the delivery of a message that the client cannot read, for
// example with more than 8192 headers, and a queue that leaves a request unanswered for 30 seconds,
// for example without a leader. A queue that is known to leave requests unanswered gets a
// connection of its own. Otherwise, when a connection is lost three times shortly after it was
// opened, its queues are split over four connections, until the queue that causes the losses is
// alone and is named in the log. Until then, the messages in flight of the other queues are
// redelivered; afterwards these queues work undisturbed. A Subscriber has 16 connections at most.
// [Subscriber.Health] tells for each queue whether it is consumed, and why not.
//
// Hosts names the nodes of a cluster. At each connect they are tried in turn, from a random node
// on. Credentials returns user and password at each connect, for passwords and tokens that expire:
//
//	config := amqp.PublisherConfig{
//		AMQP:        amqp.DurablePubSub("amqps://rabbit1/vhost", "inventory"),
//		Hosts:       []string{"rabbit1", "rabbit2", "rabbit3"},
//		Credentials: func(ctx context.Context) (user, password string, err error) { return vault.Rabbit(ctx) },
//	}
//
// # Headers
//
// RabbitMQ's work grows with the number of headers: each costs a classic queue of RabbitMQ 3.10 some
// 5 % of its rate. So what AMQP has a property for is no header: message-id is the dispatch ID, type
// and content-type are the event's, app-id is its producer, and timestamp its stamp in seconds. One
// header holds the stamp, the seconds from the stamp to the re-send horizon (nothing without a
// horizon), and the number of the publish, which tells the publisher what the broker has returned.
// An index of 0 has no header:
//
//	message-id        0b0d5d2e-6f29-5c9b-8f5e-1f6f0c7d9f10
//	type              OrderPlaced
//	app-id            orders
//	boxpair-key       order-7
//	boxpair-source    order/7
//	boxpair-version   3
//	boxpair-digest    5f1d…
//	boxpair-stamp     2026-11-20T12:00:00.000001Z;604800;42
//	tenant            acme
//
// A [Subscriber] restores the metadata, also for a custom Marshaler. watermill-amqp's own subscriber
// does not: its messages have no UUID, which an inbox refuses. For consumers that use it, set
// PublisherConfig.AllHeaders: each name has a header then. Each name also has one if the Marshaler has
// a PostprocessPublishing, which may change the properties, and in messages without a stamp, which no
// relay sends.
//
// # Envelopes
//
// With PublisherConfig.Envelope, all metadata travels in the body, as a URL query in the line
// before the payload. The content-encoding property is "boxpair", and the dispatch ID is in the
// message-id property only.
//
//	publish-seq=42&index=0&key=order-7&producer=orders&source=order/7&stamp=2026-11-20T12:00:00Z&version=3&_tenant=acme
//	{"total":120}
//
// Names lose their prefix "boxpair-", and names without this prefix follow an underscore. The
// number publish-seq tells the publisher which message the broker has returned; consumers do not
// need it.
//
// A [Subscriber] recognizes envelopes without configuration, also with a custom Marshaler, and
// reads messages with headers beside them. So update consumers before producers, and return to an
// earlier version only when no envelope is left. Headers of an enveloped message, such as the
// broker's, take precedence over the envelope's metadata. A malformed envelope is handed out
// unchanged, with [transport.MetaEnvelope], and inboxes refuse the message; with a custom Marshaler
// the message is set aside.
//
// Do not set Envelope if other programs read the messages. A stock watermill-amqp subscriber hands
// out messages without UUID and with the envelope as payload, which inboxes refuse. Any other
// program that goes by the message ID takes the envelope for the payload. An exchange that routes
// by headers finds no headers.
//
// # Messages of other programs
//
// The headers of a message become its metadata, as text: numbers in decimal, times in RFC 3339,
// bytes in base64 unless they are UTF-8, tables and arrays as JSON. Headers that RabbitMQ adds are
// left out: about a delivery (x-delivery-count, x-acquired-count, x-stream-offset) and about
// dead-lettering (x-death, x-first-death-…, x-last-death-…). A custom Marshaler gets the latter.
// The dispatch ID is Watermill's header, or else the message-id property.
//
// A message that was not sent by a [Publisher] has metadata for its other properties, unless a
// header has the name: content-type is [transport.MetaContentType], type is [transport.MetaType],
// correlation-id is [transport.MetaCorrelationID], and the rest [PropertyReplyTo], [PropertyAppID],
// [PropertyUserID], [PropertyContentEncoding], [PropertyTimestamp], [PropertyPriority] and
// [PropertyExpiration].
//
// RabbitMQ removes line breaks from the name of an exchange or a queue in a declaration, and does
// not find the name with line breaks later. Names with line breaks are refused, and a message to
// such an exchange or queue is Invalid.
//
// # Batches
//
// RabbitMQ's work grows with the number of AMQP messages, hardly with their bytes. With
// PublisherConfig.BatchSize, in addition to Envelope, up to BatchSize messages of one exchange and
// routing key are published as one AMQP message, as in Kafka's producers and in RabbitMQ's streams
// (sub-entry batching):
//
//   - While fewer than four AMQP messages are unconfirmed, a message is published at once and
//     alone. With more, messages are gathered by route, for 10 ms at most, and published when an
//     answer arrives or a batch is full. So few messages have no delay, and many messages cost
//     little.
//   - A batch is confirmed, returned, refused or lost as a whole, with all of its messages. A full
//     queue counts a batch as one message.
//   - [Publisher.SendBatch] puts the given messages into one batch. A relay uses it for successive
//     events of a key: the events keep their order whatever happens to the batch, so no event waits
//     for the confirm of its predecessor.
//
// The content-encoding property is "boxpair-batch", and message-id is the ID of the first message.
// The body begins with a line with the number of the publish. For each message, a line with the
// percent-encoded ID and the length of the envelope in bytes follows, then the envelope:
//
//	publish-seq=42
//	0b0d5d2e-6f29-5c9b-8f5e-1f6f0c7d9f10 55
//	publish-seq=42&key=order-7&producer=orders
//	{"total":120}
//	…
//
// A [Subscriber] hands the messages out one by one, like single messages; see "A delivery". After a
// crash, a shutdown or a lost connection, the messages of an unfinished batch come again, and
// inboxes recognize them. The broker's message counts are counts of batches. Envelopes and batches
// have the same rules otherwise: update consumers first.
//
// # CloudEvents
//
// With PublisherConfig.CloudEvents, messages have the headers below in addition, as in the binary
// mode of CloudEvents 1.0. CloudEvents has an official binding for AMQP 1.0, but not for AMQP
// 0-9-1, the protocol of this package. The names are those of the AMQP 1.0 binding, under which
// RabbitMQ also hands the headers to a client of AMQP 1.0. The payload and the content-type
// property, which is datacontenttype, are unchanged.
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
// The event's own headers with these names take precedence, so an event may have a different
// subject, or attributes of extensions. Consumers of this library are unaffected, and handlers find
// the headers in the metadata. A signature does not cover them: a verifying consumer hides them.
// CloudEvents of other programs are handled like all messages of other programs: by the UUID in
// their message ID, or in Watermill's header.
//
// # Partitioned topics
//
// A queue uses one core of the broker, and keeping order demands a single active consumer. A partitioned
// topic is spread over P queues by the key of the event: there are P queues with P consumers, and
// each key keeps its order. Set Partitions in [PublisherConfig] and [SubscriberConfig]:
//
//   - The publisher sends to a direct exchange. The routing key is the shard of the event's key, 0
//     to 63 as computed by idgen.Shard, after the topic's own key and a dot if the topic has a key.
//     The shard of an event without a key is that of its dispatch ID.
//   - The consumer has the queues <queue>.1ofP to <queue>.PofP. Shard s is bound to queue number s
//     mod P + 1. Powers of two share the shards evenly. A key that has most of the events still has
//     one queue.
//   - Each queue is consumed on a channel of its own, with InFlight messages, and has
//     x-single-active-consumer: processes take it over from each other, and unacknowledged messages
//     come again first, in their order.
//   - The broker leaves all queues to the process that came first. Each process counts the
//     processes, and gives back the partitions beyond its share of the partitions with messages,
//     when no message is in flight.
//   - The queue <queue> stays empty. Its x-max-length is P, and the number of its consumers is the
//     number of processes.
//
// Partitioned topics need durable queues, and pub/sub or topic exchanges: [DurableQueue] (the
// exchange has the name of the queue), [DurablePubSub] and [TopicExchange] (subscribed to by the
// topics' names, not by patterns). An exchange is partitioned with all its topics and consumers or
// not at all. Consumers of one topic may have different numbers, as the publisher only knows
// shards.
//
// The broker detects disagreement. The exchange has another type without partitions; the queue
// <queue> has another x-max-length with another P, and none without. Subscribe fails, and messages
// are unavailable, with [ErrPartitions] or with the broker's error for the exchange, and the events
// stay in their outbox. With [Passive], queues of another P do not exist, which is an error too,
// but the exchange's type cannot be checked. With [NoTopology], neither is checked.
//
// Changing P in the configuration is not enough: an event would overtake events of its key in the
// old queue. [Repartition] changes P once the old queues are empty.
//
// # TLS
//
// A URI that begins with amqps:// asks for TLS. The broker's certificate must be for the host in
// the URI, and signed by an authority in RootCAs or, without RootCAs, one that the machine trusts:
//
//	roots := x509.NewCertPool()
//	roots.AppendCertsFromPEM(pem) // the authority's certificate
//	config := amqp.DurablePubSub("amqps://user:password@host:5671/vhost", "inventory")
//	config.Connection.TLSConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
//
// Certificates of the client, for a broker with verify_peer, go into Certificates there. A broker
// with another certificate is not used: the error names the certificate, and neither password nor
// messages are sent. InsecureSkipVerify is refused, since any program that answers under the
// broker's address would get both.
//
// # Delivery limits
//
// A quorum queue of RabbitMQ 4 drops a message after 20 deliveries, which a crashing consumer can
// cause. On RabbitMQ 4, queues are declared with x-delivery-limit -1, which is no limit. On
// RabbitMQ 3, where -1 would drop after one failure, they are declared without the argument.
//
// A queue keeps its arguments. So a queue from RabbitMQ 3, or from another program, has a limit
// once the broker is version 4. A subscriber refuses such a queue; a publisher uses it. To go from
// 3 to 4 with existing queues, set DeliveryLimitIsSafe for the subscribers, upgrade the broker, and
// lift the limit by a policy:
//
//	rabbitmqctl set_policy --apply-to queues boxpair '.*' '{"delivery-limit": -1}'
//
// A policy with a limit overrides x-delivery-limit -1, so the policies decide; see "Assumptions"
// and [CheckPolicies].
//
// # What survives a crash
//
//	publisher, before the confirm     unknown: its keeper, such as an outbox, sends the message again
//	publisher, after the confirm      the broker has it, on disk in a quorum queue
//	subscriber, before the ack        the broker delivers it again, marked as redelivered
//	subscriber, acked, not yet sent   the broker delivers a duplicate of a handled message
//	broker, between both              quorum queues keep confirmed messages
//
// # Guarantees
//
//   - A message that no queue took is never reported as confirmed.
//   - Each message given to Send gets exactly one outcome, within its context and, once written,
//     within about ConfirmTimeout.
//   - Messages of one goroutine are written in the order of its calls to Send; with BatchSize, this
//     holds for messages of one route.
//   - The subscriber hands out no message that the broker did not deliver: none when a queue is
//     deleted or a connection breaks.
//   - A message that the marshaler cannot read is kept: the ack is sent only after a publish to
//     another queue was confirmed.
//   - No error and no log contains the password of the URL or a payload.
//
// # Assumptions
//
//   - Queues are durable and messages persistent. Other configuration is refused unless AllowLoss
//     is set.
//   - Each handler has a queue of its own: the handlers of one queue share its messages.
//   - One consumer at a time reads a queue, by x-single-active-consumer, as queues and partitions
//     are declared. An existing queue without that argument, and CompetingConsumers, lose the order
//     of keys between processes: the broker spreads the messages of a key over them.
//   - Handlers finish well within the broker's consumer timeout, 30 minutes by default. Beyond it,
//     the broker closes the channel and delivers all unacknowledged messages again. If the
//     publisher has BatchSize, the timeout also covers the handling of a batch: up to BatchSize
//     handlers in succession, with the pauses between attempts.
//   - No policy of the broker sets delivery-limit, max-length, message-ttl or expires for the
//     queues. Such a policy overrides the arguments of the queues, drops messages, and is invisible
//     to a client. A user who may set policies can cause this at any time. [CheckPolicies] reads
//     the policies in force from the management API.
//   - With [Passive] and [NoTopology], the operator has made sure of the settings that a client
//     cannot read: that no delivery limit, length limit or TTL drops messages.
//
// # Limitations
//
// The mandatory flag detects that no queue took a message. A fan-out with one of two queues missing
// is not detected. An alternate exchange takes unroutable messages, so the broker confirms them.
// Declare the queues from the publisher's side (PublisherConfig.Queues), and watch the queue of an
// alternate exchange.
//
// When an exchange is deleted, its bindings are deleted too. The publisher declares the exchange
// again, but bindings only for its configured queues. A connected subscriber does not notice, and
// binds its queue at its next start.
//
// A message that can be neither read nor set aside, and a message that a handler nacks, keep their
// places among the messages in flight. InFlight such messages stop the subscription.
//
// RabbitMQ answers a declaration before the queue is certain to survive. A single-node broker with
// Mnesia (seen with 3.10) that is killed within two seconds of a declaration may come back without
// the queue or the binding, and the confirmed messages of that queue are lost. Declare queues
// before the first event, in a separate step of the deployment, and let a cluster hold them.
//
// Confirms of classic queues do not wait for the disk. Confirms of quorum queues, the default, do.
package amqp
