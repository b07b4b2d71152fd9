// Package consumer is the receiving side: an inbox that applies each message once, in the transaction
// of its effects.
//
// # Handling
//
// A service has one [Inbox], over a store. Each handler of the inbox is a consumer of its own, named
// after the service and the handler, with its own dispatch IDs, attempts and parked messages.
// [Handler.Consume] is a Watermill handler:
//
//	inbox, err := consumer.New(store, outbox, consumer.Config{Service: "inventory"})
//	reserve, err := inbox.Handle("reserve", func(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
//		_, err := w.DB().Exec(ctx, `UPDATE stock …`)
//		if err != nil {
//			return err
//		}
//		_, err = w.Write(ctx, producer.Event{Topic: "stock.reserved", Key: …, Payload: …})
//		return err
//	}, consumer.HandlerConfig{})
//	router.AddConsumerHandler("reserve", "order.placed", subscriber, reserve.Consume)
//	err = inbox.Run(ctx) // beside router.Run
//
// A [Work] is the transaction in which the message is claimed: the changes of the handler, its events
// and the claim commit together. Dispatch IDs of the events are children of the message's dispatch
// ID, so a handler that runs again writes the same events.
//
// A handler that only queues statements and events (AtCommit of store/postgres, [Work.Queue]) may
// run before the message is claimed, so that claim and effects are one round trip:
// HandlerConfig.Optimistic. Such a handler also runs, in vain, for a copy that is not in the window.
//
// # States of a message
//
//	delivered ──► in the window, or claimed before ──► acknowledged (duplicate)
//	    │
//	    ├──► claimed and handled ──► COMMIT ──► remembered ──► acknowledged (applied)
//	    │         │
//	    │         └─ failed ──► again, a few times ──► parked, acknowledged
//	    │
//	    └──► parked, acknowledged: too old, altered, or without a dispatch ID
//
//	parked:  retrying ⇄ handled again by Run ──► applied
//	         following (behind an earlier message of its key)
//	         dead ──► redriven (retrying again) or discarded
//
// A parked message is kept whole in the database, with its claim: it is acknowledged, and further
// copies of it are duplicates. [Inbox.Run] handles parked messages that are due, without the broker.
// Without Run no parked message is ever handled: a process that parks a message and has never called
// Run logs an ERROR, unless Config.RunElsewhere is set.
//
// # Failures
//
// An error of the handler counts an attempt, and so do a panic, a Goexit, and a COMMIT that the
// database answers with ROLLBACK because the handler swallowed the error of a statement. [Reject]
// makes the message dead at once, and so does a write that conflicts with an event in the outbox
// ([outbox.ErrConflict]): every further attempt would fail too. [RetryAfter] counts an attempt and
// names the delay before the next one.
//
// Conflicts between transactions and errors of the database count no attempt while other messages
// fail as well. If other messages succeed meanwhile, or there are none, several errors in a row
// count as one attempt: a message that kills its connection would be immortal otherwise. A handler that
// overran its deadline always counts an attempt. While the database is down, messages are held, with
// growing waits, for Config.MaxHold. Then Consume returns the error, and the subscriber delivers the
// message again.
//
// A message that kills the process leaves no error. A message is suspect if the transport marked it
// as redelivered ([transport.Redelivered]), or if it was parked and due when Run began. Starts of a
// suspect are recorded. The first start is beside other messages, in a group if there are groups: a
// deploy makes many messages suspect. From the second start on the suspect runs alone in its
// handler, and other suspects of the Inbox wait, so that no other message can be blamed. Neither
// wait is longer than HandlerConfig.Timeout, and other handlers go on. After
// HandlerConfig.MaxSoloStarts starts alone that did not return, the message is dead without another
// run.
//
// # Groups
//
// A COMMIT costs more than most handlers. With HandlerConfig.GroupSize, waiting messages share a
// transaction: a group takes all messages that wait, up to GroupSize, and messages that arrive
// meanwhile form the next group. So groups grow with the load, and a message that arrives alone does
// not wait. Groups form from messages that the subscriber delivers concurrently: give it several
// times GroupSize in flight (amqp.SubscriberConfig.InFlight, memory.Config.InFlight). The
// transaction claims all messages of the group, runs their handlers one after another in the order
// of arrival, and commits. No message is acknowledged before the commit.
//
// If a handler fails, the group is rolled back with all claims. The failed message is handled again
// alone, and the other messages again in a group. The failure counts no attempt: another message of
// the group may have caused it. Later messages of the same key wait for the failed one, and if it is
// returned to the transport, they are returned as well. After a conflict, an error of the database,
// a commit with an unknown outcome, an overrun deadline or a second failure, each message is handled
// alone, as if there were no groups. So:
//
//   - A handler runs once more for each group of its message that is rolled back. Its effects outside
//     the transaction happen again.
//   - A handler sees the changes of earlier handlers of its group as if they were committed.
//   - Locks that handlers take are held until the group ends. Two groups that lock rows in different
//     orders may deadlock, which rolls a group back and counts no attempt.
//   - HandlerConfig.Timeout bounds the group. A group that overruns it halves the size of the next
//     groups.
//   - The starts of suspects of a group are recorded together before the group begins. A rollback
//     removes them, and a commit does as well. A group that dies with its process leaves a start on
//     each of its suspects: from then on each is handled alone. Parked messages are in no group.
//
// [Inbox.HandleBatch] registers a function that takes all messages of a group, for effects that one
// statement can write. A message that fails is found by halving; see [BatchFunc].
//
// # What survives a crash
//
//	received                    nothing is changed; delivered again
//	dispatch ID checked         likewise
//	window looked up            likewise
//	claimed, in BEGIN           rolled back by the database; delivered again, and
//	                            a copy that waited for the claim goes on at once
//	handler, before effects     likewise
//	after effects               likewise: effects, events and claim are one transaction
//	COMMIT sent, no answer      the message is claimed again at once: either it is a
//	                            duplicate, or it was not applied and the handler runs
//	committed                   delivered again; the claim says duplicate
//	remembered in the window    the window is lost; likewise
//	acknowledgement lost        likewise
//	handled before its claim    nothing is sent, or rolled back; delivered again. Claim and effects
//	(optimistic)                are sent together with the COMMIT
//	in a group                  likewise for all members: their claims, effects and events are one
//	                            transaction. Redelivered members may be in a group again; members that
//	                            had been redelivered before are handled alone
//	parked, before its COMMIT   as when it is claimed; after it as committed, and Run handles it
//	parked and being handled    rolled back; still due, for this process or another one
//	forgetting                  each batch is a transaction; the next pass goes on
//
// # Forgetting
//
// A consumer forgets dispatch IDs with a stamp older than Config.Window. All copies of a message have
// the same stamp. The consumer records up to which stamp it has forgotten: a message with an older
// stamp is set aside for an operator, never run and never dropped. A message without a stamp gets
// the time of its arrival: it is deduplicated within the window and not beyond. A stamp in the
// future is believed: the message is handled, reported, and remembered until the stamp is older than
// the window. A consumer that is younger than its window has forgotten no IDs, and may read history
// of any age.
//
// A message carries its horizon: until when its producer may send it again. The consumer stores the
// longest horizon that is not over. A horizon beyond Config.Window is reported; copies are safe all
// the same: at worst they are set aside as too old. If messages are signed (Config.Verifier),
// [Inbox.Run], [Inbox.Check] and [Handler.Consume] refuse the next start with [ErrShortWindow],
// unless Config.ShortWindow is [ReportShortWindow]. A horizon counts as Config.MaxHorizon at most,
// and without a signature as Config.Window at most.
//
// # Guarantees
//
//   - A handler's effects in its database commit exactly when the claim commits, or, for a parked
//     message, when its parked row is deleted. A copy is acknowledged without running the handler. An
//     Optimistic handler may run for a copy, and its transaction is rolled back.
//   - A message is acknowledged only when it was applied, is a duplicate, or is
//     parked where an operator sees it.
//   - A dispatch ID is added to the window only after its COMMIT has succeeded.
//   - With HandlerConfig.Ordered, messages of a key that are delivered in order are applied in
//     order, through failures and restarts, except past a dead one.
//   - A failing message delays its own key. An outage counts no attempts.
//
// # Assumptions
//
//   - Every message has a dispatch ID as its UUID. A message without one is parked as dead, or, with
//     HandlerConfig.DeriveID, gets an ID that is derived from its UUID.
//   - Config.Window is longer than any producer may send a message again: the outbox's
//     retention, the time events stay parked there, and replays.
//   - The transport redelivers messages that were not acknowledged, and its deadline for an
//     acknowledgement (RabbitMQ's consumer_timeout) is longer than Config.MaxHold and three handler
//     timeouts.
//   - The store reports a commit only if it has happened.
//
// # Limitations
//
//   - Effects of a handler outside the transaction (a call, a mail) happen once per attempt, not
//     once. Package effects keeps a ledger of calls: the intent is recorded with the claim, the call
//     is made outside any transaction under a stable key, and the result is recorded together with
//     the effects that follow. Whether a call is carried out once is up to the other side; see
//     docs/effects.md.
//   - The inbox waits for a handler that ignores its context; only the database ends its transaction.
//   - A store sees settings in the text of a handler's statements. A setting that a function or
//     procedure makes, or set_config with an argument in place of true or false, stays on the
//     connection.
//   - A handler that makes another message be handled must pass its own context: the other message is
//     then refused ([inbox.ErrNested]). Without it, on a database with one writer, the other message
//     waits for the handler's transaction until one of them gives up.
//   - Run reports parked messages of handlers that were renamed. Parked messages of a renamed service
//     look like those of another service.
//   - A handler that commits past its transaction, on the connection itself or in a procedure, may
//     have committed half of its work. Its message, and messages that shared the transaction, are set
//     aside as [inbox.AlteredState] if their claims are committed ([inbox.ErrEnded]). If the process
//     dies in between, a copy passes for a duplicate.
//   - Several inboxes in one process do not know of each other: a handler name is refused twice
//     within one Inbox only, and "alone" means alone in a handler. So a message may be blamed for
//     the death of a process that a message of another handler, or of another Inbox, has caused. The
//     message is dead only if this happens at each of its starts.
//   - Recorded starts of all copies of a message are counted together, in all processes.
//   - Two messages with one dispatch ID, different content and stamps that are both forgotten are
//     both set aside as too old. If an operator redrives both, both may run: the claim of the first
//     has a forgotten stamp too, and is forgotten again.
//   - A fail-over that loses commits loses claims together with their effects. The window is emptied
//     after errors of the database, and is believed only if the store, as an [inbox.Identifier], has
//     named the same database within the last tenth of a second. If a database does not tell its
//     identity, the window misses a fail-over that this process does not notice.
package consumer
