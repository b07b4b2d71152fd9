// Package consumer is the receiving side: an inbox that applies each message
// once, in the transaction of its effects.
//
// # Handling
//
// An [Inbox] is made once per service, over a store. Each of its handlers is a
// consumer of its own, named after the service and the handler: its dispatch
// IDs, attempts and parked messages are its own. [Handler.Consume] is a Watermill
// handler:
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
// A [Work] is the transaction in which the message is claimed: what the handler
// changes through it, the events that it writes and the claim commit together.
// Those events get dispatch IDs that are children of the message's, so a handler that
// runs again writes the same events.
//
// A handler that only queues statements and events (AtCommit of store/postgres, [Work.Queue]) may
// run before the database is asked for its claim, so that all of it is one round trip:
// HandlerConfig.Optimistic. It then also runs, in vain, for a copy that is not in the window.
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
// A parked message is kept whole in the database, with its claim: it is
// acknowledged and further copies of it are duplicates. [Inbox.Run] takes up what
// is due, without the broker. Without Run nothing parked is ever taken up again: a process that
// parks a message and has never called Run logs an ERROR, unless Config.RunElsewhere is set.
//
// # Failures
//
// An error of the handler counts an attempt, and so do a panic, a Goexit and a
// COMMIT that the database answers with ROLLBACK since the handler swallowed the
// error of a statement. [Reject] makes the message dead at once, as does a
// write that conflicts with an event which the outbox holds already
// ([outbox.ErrConflict]): no repetition would end otherwise. [RetryAfter] says
// when to try again; it counts an attempt too.
//
// Conflicts between transactions and errors of the database count no attempt
// while other messages fail as well. Where others succeed meanwhile, or nobody else is
// there, several of them in a row count as one attempt, and a handler that overran its
// own deadline always counts, or a message that kills its connection would be
// immortal. While the database is down, messages are held, with waits that grow, for
// Config.MaxHold; then Consume returns the error and the subscriber delivers
// again.
//
// A message that kills the process leaves no error. When the transport says that a message was
// delivered before ([transport.Redelivered]), or a parked one was due when Run began, its start is
// recorded. The first time it runs beside others, in a group with them if there are groups, as what
// a deploy redelivers does; from its second start on it is alone in its handler, and other such
// messages of the Inbox wait for it, so that nobody else can be blamed. Neither wait is longer than
// HandlerConfig.Timeout, and other handlers go on. After HandlerConfig.MaxSoloStarts starts alone
// that never came back it is dead without being run again.
//
// # Groups
//
// A COMMIT costs more than most handlers. With HandlerConfig.GroupSize, messages that wait at
// the same time share one: a transaction takes all that is there, up to that many, and what
// arrives meanwhile is for the next one. So the more there is to do the larger the
// groups are, and a message that comes alone waits for nobody. They form from what the subscriber
// delivers concurrently: give it several GroupSize in flight (amqp.SubscriberConfig.InFlight,
// memory.Config.InFlight). A group has its members' claims, then their handlers one after
// another in the order of arrival, then one COMMIT; none is acknowledged before it.
//
// A group in which a handler fails is rolled back as a whole, all claims included. Whoever failed
// is handled again alone, and the others once more together. The failure in the group counts no
// attempt: a neighbour may have had a hand in it. Later members of its key wait for it, and are
// returned to the transport if it is. After a conflict, an error of the database, a commit with an
// unknown outcome, an overrun deadline or a second failure, each member is handled alone, as if
// there were no groups. So:
//
//   - A handler runs once more for each group of its message that is rolled back. What it does
//     outside the transaction it does again.
//   - Handlers of a group see what those before them in it have changed, as if it were committed.
//   - Locks that handlers take are held until the group ends, and two groups that take rows in
//     different orders may deadlock, which costs them their group and no attempt.
//   - HandlerConfig.Timeout is for the group. One that overruns it halves the next ones.
//   - The starts of the redelivered messages of a group are recorded together before it begins, and
//     taken back when it is rolled back, or forgotten with its commit. A group that dies with its
//     process leaves a start on each of them: from then on each is handled alone, and is in no
//     group any more, nor is a parked message.
//
// [Inbox.HandleBatch] registers a function that takes the whole set, for effects that one
// statement can write. What fails in it is found by halves; see [BatchFunc].
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
//	COMMIT sent, no answer      the claim is run again at once and tells: either it is a
//	                            duplicate, or nothing happened and the handler runs
//	committed                   delivered again; the claim says duplicate
//	remembered in the window    the window is lost; likewise
//	acknowledgement lost        likewise
//	handled before its claim    nothing is sent, or rolled back; delivered again. The COMMIT is the same, whether
//	(optimistic)                claim and effects are sent with it or were before
//	in a group                  likewise for each of its members: claims, effects and events of all
//	                            are one transaction. Delivered again, they may be in a group; each is alone
//	                            if they were delivered again before
//	parked, before its COMMIT   as when it is claimed; after it as committed, and Run takes it up
//	parked and being handled    rolled back; still due, for this process or another
//	forgetting                  each batch is a transaction; the next pass goes on
//
// # Forgetting
//
// A consumer forgets dispatch IDs whose stamp, which is the same for every copy of a
// message, is older than Config.Window. It knows up to when it has forgotten: a
// message from before is set aside for an operator, never run blindly and never
// dropped. Messages without a stamp count from their arrival: they are deduplicated
// within the window and not beyond it. A stamp in the future is believed: the message is
// handled, reported, and remembered until the stamp is older than the window. A consumer that is
// younger than its window has forgotten nothing and may read history of any age.
//
// Messages say until when their producer may send them again, and the consumer keeps the longest
// such horizon that is not over. One that exceeds Config.Window is reported; copies are safe all
// the same: at worst they are set aside as too old. If the messages are signed (Config.Verifier),
// [Inbox.Run], [Inbox.Check] and [Handler.Consume] refuse the next start with [ErrShortWindow],
// unless Config.ShortWindow says otherwise. A horizon beyond Config.MaxHorizon counts as that, and
// one that is not signed as Config.Window at most.
//
// # Guarantees
//
//   - A handler's effects in its database commit exactly when the claim does, or, for a parked
//     message, when its parked row goes. A copy is acknowledged without running the handler, or, if
//     that is Optimistic, without anything of what it did in the transaction.
//   - A message is acknowledged only when it was applied, is a duplicate, or is
//     parked where an operator sees it.
//   - Nothing is remembered before its COMMIT is known.
//   - With HandlerConfig.Ordered, messages of a key that are delivered in order are applied in
//     order, through failures and restarts, except past a dead one.
//   - A failing message delays its own key. An outage counts no attempts.
//
// # Assumptions
//
//   - Every message has a dispatch ID as its UUID. One that has none is parked as dead,
//     or gets an ID derived from its own with HandlerConfig.DeriveID.
//   - Config.Window is longer than any producer may send a message again: the outbox's
//     retention, the time events stay parked there, and replays.
//   - The transport delivers again what was not acknowledged, and its deadline for an
//     acknowledgement (RabbitMQ's consumer_timeout) is longer than Config.MaxHold and
//     three handler timeouts.
//   - The store tells the truth about commits.
//
// # Limitations
//
//   - Effects of a handler outside the transaction (a call, a mail) happen once per attempt, not
//     once. Package effects keeps a ledger of them: the intent is recorded with the claim, the call
//     is made outside any transaction under a stable key, and its result is recorded with what
//     follows. Whether it was carried out once is up to the other side; see docs/effects.md.
//   - A handler that ignores its context is waited for; only the database ends its
//     transaction.
//   - Settings are seen in the text of a handler's statements. What a function or procedure sets,
//     or set_config with an argument in place of true or false, stays on the connection.
//   - A handler that has another message handled does so with its own context, or on a database
//     with one writer that message waits for the handler's transaction until one of them gives up;
//     with it, it is refused ([inbox.ErrNested]).
//   - Run reports parked messages of handlers that were renamed. Those of a service that was
//     renamed look like another service's.
//   - A handler that commits past its transaction, on the connection itself or in a procedure, may
//     have committed half of its work. Its message, and those that shared the transaction, are set
//     aside as [inbox.AlteredState] where their claims are found committed ([inbox.ErrEnded]). If
//     the process dies in between, a copy passes for a duplicate.
//   - Several inboxes in one process do not know of each other: a handler name is refused twice
//     within one Inbox only, and "alone" means alone in a handler. So a message may be blamed for
//     the death of a process that a message of another handler, or of another Inbox, has caused: it
//     is dead only if that happens at each of its starts.
//   - Recorded starts of a message are counted together, whoever begins it: copies of one that was
//     redelivered to several processes count for each other.
//   - Two messages of one dispatch ID with different content that are both from a time which is
//     forgotten are both set aside as too old. If an operator redrives both, both may run: the
//     claim of the first is of that time too, and is forgotten again.
//   - A fail-over that loses commits loses claims together with their effects. The window forgets
//     everything when the database was in trouble, and is believed only if the store, as an
//     [inbox.Identifier], has named the same database within the last tenth of a second. Where a
//     database does not tell its identity, a fail-over that this process did not notice is not
//     noticed by its window.
package consumer
