// Package consumer is the receiving side. Its inbox applies each message once, in the transaction
// of the message's effects.
//
// # Handling
//
// A service has one [Inbox], over a store. Each handler of the inbox is a separate consumer, named
// after the service and the handler, with its own dispatch IDs, attempts and parked messages.
// [Inbox.AddHandler] adds it to a Watermill router:
//
//	inbox, err := consumer.New(store, consumer.Config{Service: "inventory"}, consumer.WithOutbox(outbox))
//	reserve := func(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
//		_, err := w.DB().Exec(ctx, `UPDATE stock …`)
//		if err != nil {
//			return err
//		}
//		_, err = w.Write(ctx, producer.Event{Topic: "stock.reserved", Key: …, Payload: …})
//		return err
//	}
//	_, err = inbox.AddHandler(router, "reserve", "order.placed", subscriber, reserve, consumer.HandlerConfig{})
//	err = inbox.Run(ctx) // beside router.Run
//
// A [Work] is the transaction that claims the message: the claim, the handler's changes and the
// handler's events commit together. Dispatch IDs of the events are children of the message's
// dispatch ID, so a repeated run of the handler writes the same events.
//
// With HandlerConfig.Optimistic, a handler that only queues statements (AtCommit of store/postgres)
// and writes events ([Work.Write]) may run before the message is claimed: claim and effects take one
// round trip. Such a handler also runs, in vain, for a copy that is not in the window.
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
// The window holds the latest dispatch IDs of a handler in memory (package dedupe).
//
// A parked message is kept whole in the database, with a claim unless the message is too old or
// altered. The message is acknowledged, and further copies are duplicates. [Inbox.Run] handles
// parked messages that are due, without the broker. Without Run no parked message is ever handled.
// A process that parks a message for a retry, and has called neither Run nor RunOnce, logs an ERROR
// unless Config.RunElsewhere is set.
//
// # Failures
//
// An error of the handler counts an attempt. So do a panic, a Goexit, and a COMMIT that the
// database answers with ROLLBACK because the handler swallowed the error of a statement. [Reject]
// makes the message dead at once, as does a write in conflict with an event in the outbox
// ([outbox.ErrConflict]): every further attempt would fail too. [RetryAfter] counts an attempt and
// sets the delay before the next attempt.
//
// Conflicts between transactions and errors of the database count no attempt while other messages
// fail too. If other messages succeed meanwhile, or no other message is handled, several errors in
// a row count as one attempt: otherwise a message that kills its connection would be immortal. A
// handler that overran its deadline always counts an attempt. While the database is down, messages
// are held for Config.MaxHold, with growing waits. Then Consume returns the error, and the
// subscriber delivers the message again.
//
// A message that kills the process leaves no error. So a message is suspect if the transport marked
// the message as redelivered ([transport.Redelivered]), or if it was parked and among the messages
// that were due first when Run began: a message that dies with its process keeps its place.
// A start of a suspect is recorded. At the first start the suspect runs beside other messages, or,
// with HandlerConfig.Group.Size, in a group: a deploy makes many messages suspect. From the second start on the suspect runs alone
// in its handler, and other suspects of the Inbox wait, so no other message can be blamed. Neither
// wait is longer than HandlerConfig.Timeout, and other handlers go on. After
// HandlerConfig.Retry.MaxSoloStarts starts alone, all without a return, the message is dead without
// another run.
//
// # Groups
//
// A COMMIT costs more than most handlers, so messages share transactions where that serves. Under load,
// with at least 4 messages in flight on average, a handler measures how many messages a second it handles
// with a transaction each and in groups, and how long a message is in flight, for a tenth of a second
// each. It keeps to groups for ten seconds if that time is shorter, or if it handles at least 95 % as many
// messages a second and that time is not twice as long: the database has less work. Otherwise it measures
// again after a second, and then later and later, up to 3 minutes. A measurement of groups ends after a tenth
// of a second if they handle less than 40 %: handlers that wait, as for another service, are slower one
// after another.
//
// The transaction of a group claims all messages of the group, runs their handlers one after another in
// the order of arrival, and commits. No message is acknowledged before the commit. A group takes the
// waiting messages, up to 64, and as many as take about 20 ms. Up to three groups of a handler run at
// once, each on a connection of its own: one begins beside others when it is full or has 16 messages. A message
// that has waited for a group for 250 ms is handled alone. After such a wait, or a group that took as long,
// messages have transactions of their own until the next measurement. A redelivered message is in no group,
// nor is a parked one.
//
// If a handler fails, or has not returned after a second, the group is rolled back with all claims,
// no attempt is counted, and each message is handled alone, as if there were no groups. There are none
// for a minute then, and for twice as long after the next failure, up to 15 minutes. So:
//
//   - A handler runs once more if the group of its message is rolled back. Effects outside the
//     transaction happen again, as after every failed attempt.
//   - A handler sees the changes of earlier handlers of its group as if they were committed.
//   - Locks of handlers are held until the group ends. Two groups that lock rows in different orders may
//     deadlock. One of them, or after a second both, are rolled back, and no attempt is counted. After a
//     deadlock, a lock timeout or a group that took over a second beside another, one group runs at a time
//     for 15 minutes, and twice as long after the next, up to a day.
//
// A HandlerConfig.Group.Size of 1 gives each message a transaction of its own, always. So do Optimistic,
// StoreFirst, MaxPerSecond, an Isolation other than [inbox.ReadCommitted], and the handlers of package
// effects.
//
// A larger Group.Size has messages share transactions always: a group takes all waiting messages, up to
// Group.Size, and messages that arrive meanwhile form the next group. So groups grow with the load, and
// a message that arrives alone does not wait. Give the subscriber several times Group.Size in flight
// (amqp.SubscriberConfig.InFlight, memory.Config.InFlight). Then:
//
//   - If a handler fails, the failed message is handled again alone, and the other messages again in a
//     group: another message of the group may have caused the failure. Later messages of the key wait for
//     the failed message, and are returned to the transport if the failed message is returned. After a
//     conflict, an error of the database, a commit with an unknown outcome, an overrun deadline or a
//     second failure, each message is handled alone.
//   - Two groups that lock rows in different orders may deadlock. A deadlock rolls a group back and
//     counts no attempt.
//   - HandlerConfig.Timeout bounds the group. A group that overruns the deadline halves the size of
//     the next groups.
//   - The starts of a group's suspects are recorded together before the group begins, and removed
//     by a rollback or a commit. A group that dies with its process leaves a start on each of its
//     suspects, which are handled alone from then on.
//
// [Inbox.HandleBatch] registers a function for all messages of a group, whose effects can be
// written in one statement. A failing message is found by halving; see [BatchFunc].
//
// # Pauses and limits
//
// While a [control.Pause] names the consumer, or all consumers of the service, no message of the
// consumer is handled, whether delivered or parked, and no effect is taken up. No attempt is counted,
// and no message is parked. Handlers that run when the pause begins finish, and so does a message
// whose COMMIT has an unknown outcome. A delivered message waits within Consume until the pause ends,
// for Config.MaxHold at the longest; then Consume returns [ErrPaused], and the transport delivers the
// message again. Copies that the window knows are acknowledged meanwhile. An inbox with work reads
// the pauses twice a second at most, so the beginning and the end of a pause are seen within a
// second. An inbox without work reads no pauses. If the pauses cannot be read, the last known pauses
// remain in force. [Inbox.RunOnce] leaves the messages of a paused consumer alone, without an error.
//
// HandlerConfig.MaxPerSecond limits how often a handler runs, in all processes together, by tokens
// that processes take from a bucket in the database. A message waits for a token as for the end of a
// pause; then the error is [ErrRateLimited]. Messages get tokens in the order of their arrival. A
// message takes a token for each attempt, and a member of a group one more if it is handled again
// outside the group. Without the database no tokens can be taken: that is an outage as in Failures.
//
// Config.Observer is told of dead and parked messages, of pauses, and of an outage longer than
// Config.MaxHold.
//
// # Storing first
//
// With HandlerConfig.StoreFirst, a delivered message is parked and acknowledged at once, and Run
// handles the message as any other parked message that is due: with the same attempts, order and
// dead messages, in any process of the service. So one message in flight does not bound the handler.
// Messages of a key run in the order in which they were stored. Without Run nothing is stored; see
// [ErrNotRunning]. A first failure is followed by quick attempts, as of a delivered message, while
// the message stays parked. Pauses and limits hold up the handling, and not the storing.
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
//	COMMIT sent, no answer      the message is claimed again at once. If the COMMIT succeeded, the
//	                            message is a duplicate; otherwise the handler runs
//	committed                   delivered again; the claim makes the copy a duplicate
//	remembered in the window    likewise; the window is lost
//	acknowledgement lost        likewise
//	handled before its claim    nothing was sent, or it is rolled back; delivered again. Claim and
//	(optimistic)                effects are sent together with the COMMIT
//	in a group                  likewise for all members: claims, effects and events of all members
//	                            are one transaction. Redelivered members may be in a group again;
//	                            members that had been redelivered before are handled alone
//	stored, before its COMMIT   nothing is changed; delivered again. After the COMMIT the copy is a
//	                            duplicate, and Run handles the message, in any process
//	parked, before its COMMIT   as when claimed; after the COMMIT as when committed, and Run
//	                            handles the message
//	parked and being handled    rolled back; still due, for this process or another process
//	forgetting                  each batch is a transaction; the next pass goes on
//
// # Forgetting
//
// A consumer forgets dispatch IDs with a stamp older than Config.Window. All copies of a message
// have the same stamp. The consumer records the stamp up to which dispatch IDs are forgotten. A
// message with an older stamp is set aside for an operator, never run and never dropped. A message
// without a stamp gets the time of its arrival, and is deduplicated only for Config.Window. A stamp
// in the future is believed: the message is handled, reported, and remembered until the stamp is
// older than Config.Window. A consumer younger than Config.Window has forgotten no IDs, and may
// read history of any age.
//
// A message carries its horizon: until when its producer may send the message again. The consumer
// stores the longest horizon until the horizon is over. A horizon beyond Config.Window is reported.
// Copies are safe all the same: at worst a copy is set aside as too old. If messages are signed
// (Config.Verifier), [Inbox.Run], [Inbox.Check] and [Handler.Consume] refuse the next start with
// [ErrShortWindow], unless Config.ShortWindow is [ReportShortWindow]. A horizon counts as
// Config.MaxHorizon at most, and without a signature as Config.Window at most.
//
// # Guarantees
//
//   - A handler's effects in its database commit exactly when the claim commits, or, for a parked
//     message, when the parked row is deleted. A copy is acknowledged without running the handler.
//     A run of an Optimistic handler for a copy is rolled back.
//   - A message is acknowledged only when it was applied, is a duplicate, or is parked where an
//     operator sees it.
//   - A dispatch ID is added to the window only after its COMMIT has succeeded.
//   - With HandlerConfig.Order.ByKey, messages of a key that are delivered in order are applied in
//     order, through failures and restarts, except past a dead message.
//   - A failing message delays its own key. An outage counts no attempts.
//
// # Assumptions
//
//   - The UUID of every message is a dispatch ID. Any other message is parked as dead, or, with
//     HandlerConfig.DeriveID, gets a dispatch ID derived from its UUID.
//   - Config.Window is longer than any producer may send a message again: the retention of the
//     outbox, the time that events stay parked in the outbox, and replays.
//   - The transport redelivers messages that were not acknowledged. The transport's deadline for an
//     acknowledgement (RabbitMQ's consumer_timeout) is longer than Config.MaxHold and three handler
//     timeouts together.
//   - The store reports a commit only if the commit has happened.
//
// # Limitations
//
//   - Effects of a handler outside the transaction (a call, a mail) happen once per attempt, not
//     once. Package effects keeps a ledger of calls: the intent is recorded with the claim, the
//     call is made outside any transaction under a stable key, and the result is recorded together
//     with the effects that follow. Whether a call is carried out once is up to the other side; see
//     docs/effects.md.
//   - The inbox waits for a handler that ignores its context. Only the database ends the handler's
//     transaction.
//   - A store sees settings in the text of a handler's statements. A setting made by a function or
//     procedure, or by set_config with an argument in place of true or false, stays on the
//     connection.
//   - A handler that makes another message be handled must pass on its own context: the other
//     message is then refused ([inbox.ErrNested]). Otherwise, on a database with one writer, the
//     other message waits for the handler's transaction until either side gives up.
//   - Run reports parked messages of renamed handlers. Parked messages of a renamed service look
//     like messages of another service.
//   - A handler that commits past its transaction, on the connection itself or in a procedure, may
//     have committed half of its work. All messages of the transaction whose claims are committed
//     are set aside as [inbox.AlteredState] ([inbox.ErrEnded]). If the process dies in between, a
//     copy passes for a duplicate.
//   - Inboxes in one process do not know of each other: a handler name is refused twice within one
//     Inbox only, and a suspect is alone in its handler only. So a message may be blamed for the
//     death of a process by a message of another handler or another Inbox. The blamed message is
//     dead only if the process dies at each of its starts.
//   - Recorded starts of all copies of a message are counted together, in all processes.
//   - Two messages with one dispatch ID, different content and forgotten stamps are set aside as
//     too old. If an operator redrives both messages, both may run: the claim of the first message
//     has a forgotten stamp too, and is forgotten again.
//   - A fail-over that loses commits loses claims together with their effects. The window is
//     emptied after errors of the database, and is believed only if the store, as an
//     [inbox.Identifier], has named the same database within the last tenth of a second. If a
//     database does not tell its identity, the window misses a fail-over that this process does not
//     notice.
package consumer
