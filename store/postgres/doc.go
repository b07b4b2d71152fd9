// Package postgres keeps outboxes and inboxes in PostgreSQL, on pgx.
//
// [Migrate] makes the tables, [New] returns a [Store] over a pool, and the store is what
// producer.New and consumer.New take. A transaction is a [pgx.Tx]. For services on database/sql, or
// on what stands on it, [NewSQL] returns a [SQLStore], whose transactions are [sql.Tx]. PostgreSQL
// 13 or later is needed, and nothing besides: no extension, no superuser, no session state, so a
// pooler in transaction mode may be in between ([Store.Listen] apart, which needs a session of its
// own and can do without).
//
// # The outbox
//
// An event is a row in outbox_events, which never changes, and a small row in outbox_queue, which
// is deleted when the event is confirmed. A failed event, and the later events of its key, have a
// row in outbox_parked instead. A row in outbox_shards says which relay owns a shard, until when,
// and at which epoch. The view outbox_status joins them: it says of every event what became of it,
// and what it waits for if it does.
//
// What survives a crash at which step:
//
//   - Before the commit of the business transaction there is no event; after it
//     there is an event and its queue row. There is nothing in between.
//   - An event that was published but not marked keeps its queue row and is
//     published again, under the same dispatch ID.
//   - Marks are committed without waiting for the disk. A crash of the database may
//     undo the last ones; their events are published again.
//   - Everything else waits for the disk.
//
// # Round trips of Transact
//
// A transaction of [Store.Transact] begins on the server with its first statement. Statements of
// the caller's wait for BEGIN; those of this package travel with it. What is queued, by [AtCommit]
// and by producer.Writer.Queue, travels with the COMMIT, in one message to the server: nothing of
// it is carried out behind a statement that failed. A transaction that only queues is one round
// trip. If the connection breaks meanwhile, the outcome is unknown as that of a COMMIT is, unless
// the server has said before that it could not begin. What is queued is waited for as the COMMIT
// is, for 30 s at most, also when the context ends; locks of keys (producer.Config.LockKeys) are
// therefore taken before.
//
// # Fencing
//
// Every statement that changes what a relay owns locks the rows of its shards,
// for the owner and epoch that the relay believes in, in the same statement (FOR KEY
// SHARE). A takeover locks them FOR UPDATE. So the statement of a relay that was stopped
// and woken either ends before the takeover begins, or waits for it, looks at the
// row again and changes nothing. Comparing owner and epoch without the lock would
// not do: the statement would still see the row as it was when it began. Renewals
// touch no key and wait for none of these.
//
// Locks are taken in one order everywhere: rows of shards by ascending shard,
// then rows of events. Operators lock shard rows FOR UPDATE first, so they exclude
// relays for the time of one statement.
//
// # Privileges
//
// Nothing here needs to own a table. migrations.PostgresGrants returns the statements that give the
// roles of a producer, a relay, a consumer, a janitor, an operator, a monitor and of what answers
// requests what each needs and no more; the contract of this store is tested with these roles.
// [Migrate] is for the owner.
//
// # TLS
//
// The connections are the pool's, and so is their encryption. pgx's default, sslmode=prefer,
// takes a server without TLS or with any certificate. Across a network, ask for the
// server's certificate in the pool's URL:
//
//	postgres://user@host/db?sslmode=verify-full&sslrootcert=/etc/ssl/db-roots.pem
//
// A server whose certificate is not for this host, or not signed by these roots, is then
// refused before the password is sent. sslcert and sslkey name a certificate of the client's own.
//
// # The inbox
//
// A claimed dispatch ID is a row in inbox; a message that waits, died or was set aside is a
// whole row in inbox_parked. inbox_attempts counts what failed or never came back, and
// inbox_consumers says up to when each consumer has forgotten.
//
// A handler's transaction begins with its claim, in one round trip:
//
//	BEGIN                                     at the level that the handler wants
//	SELECT set_config(…)                      idle timeout; lock timeout until the claim is made
//	SELECT pg_advisory_xact_lock(…)           of the key, if the handler wants order
//	INSERT INTO inbox … ON CONFLICT DO NOTHING
//	SELECT … FROM inbox_consumers             what is forgotten; is the key parked; end of the lock timeout
//
// Without an order, at READ COMMITTED, the INSERT brings the settings along. What a handler queues
// with [AtCommit] goes with the COMMIT in one more round trip, so a handler that only writes costs
// two; with an Optimistic claim, which is sent then, one. Each is a statement of its own because
// each must see what those before it have waited for. Above READ COMMITTED all statements see what
// the first one saw. There the session takes the lock of the key in a transaction before, in the
// same message to the server, and hands it over; and what is forgotten is read with a lock that
// fails if it has changed, and that a savepoint gives up again. So a handler sees what the one
// before it of its key has done, at every level, and nobody waits for a handler but copies of its
// message and messages of its key.
//
// A group of messages is claimed in the same way, with one INSERT for all, in the order of their
// dispatch IDs, and the locks of all keys in theirs, so that groups do not deadlock over them.
//
// Locks are taken in one order here too: of a key, then a claim, then rows of parked messages.
// The lock of a key is what parks, follows, takes up, redrives and discards under; a
// newcomer and a release therefore cannot pass each other.
//
// What survives a crash at which step:
//
//   - Before the COMMIT of a handler's transaction neither claim nor effects are there, after it
//     both. If the answer to the COMMIT was lost, a further claim waits for the old backend and
//     tells.
//   - A message is parked in the transaction that claims it, and removed in that of its effects.
//   - What is forgotten is committed before a dispatch ID is removed because of it.
//   - A process that is stopped within a transaction is cut off by the server after the idle
//     timeout; what it goes on to do fails.
//
// # Assumptions
//
// Statements of relays and operators run at READ COMMITTED. If the pool's
// connections default to a stricter level, they may fail with a conflict and are
// to be repeated; they never do anything else.
package postgres
