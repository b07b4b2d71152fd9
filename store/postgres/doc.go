// Package postgres keeps outboxes and inboxes in PostgreSQL, on pgx.
//
// [Migrate] creates the tables, and [New] returns a [Store] over a pool, for producer.New and
// consumer.New. A transaction is a [pgx.Tx]. For services on database/sql, or on a library above
// it, [NewSQL] returns a [SQLStore], whose transactions are [sql.Tx]. The package needs PostgreSQL
// 13 or later, but no extension, no superuser and no session state, so it works behind a pooler in
// transaction mode. Only [Store.Listen] needs a session of its own, and is optional.
//
// # The outbox
//
// An event is a row in outbox_events, which never changes, and a small row in outbox_queue, which
// is deleted when the event is confirmed. A failed event and the later events of its key have a row
// in outbox_parked instead. A row in outbox_shards names the relay that owns a shard, the end of
// its lease, and its epoch. The view outbox_status joins the tables: it shows the state of every
// event, and the reason why it waits.
//
// What survives a crash at which step:
//
//   - Before the commit of the business transaction the event does not exist; after it both the
//     event and its queue row do.
//   - An event that was published but not marked keeps its queue row and is published again, under
//     the same dispatch ID.
//   - Marks are committed without waiting for the disk. A crash of the database may undo the last
//     marks; their events are published again.
//   - All other commits wait for the disk.
//
// # Round trips of Transact
//
// A transaction of [Store.Transact] begins on the server with its first statement. Statements of
// the caller's wait for BEGIN; statements of this package travel with it. Statements queued by
// [AtCommit] and events queued by producer.Writer.Queue travel with the COMMIT, in one message to
// the server: after a failed statement the server runs none of the rest. A transaction that only
// queues takes one round trip. If the connection breaks meanwhile, the outcome is unknown, as for a
// COMMIT, unless the server has said before that it could not begin. Transact waits for the answer
// for up to 30 s, even if the context ends; locks of keys (producer.Config.LockKeys) are therefore
// taken before.
//
// # Fencing
//
// Every statement that changes state owned by a relay locks the rows of its shards, for the owner
// and epoch that the relay believes in, in the same statement (FOR KEY SHARE). A takeover locks the
// rows FOR UPDATE. So the statement of a relay that was stopped and woken either ends before the
// takeover begins, or waits for it, checks the row again and changes nothing. Comparing owner and
// epoch without the lock would not do: the statement would still see the row of the time when it
// began. Renewals change no key column and wait for no fenced statement.
//
// All statements lock in one order: rows of shards by ascending shard, then rows of events.
// Operators lock shard rows FOR UPDATE first, so they exclude relays for the time of one statement.
//
// # Privileges
//
// No role needs to own a table. migrations.PostgresGrants returns the statements that grant the
// privileges, and no more than needed, to the roles of a producer, a relay, a consumer, a janitor,
// an operator, a monitor and a service that answers requests; the contract of this store is tested
// with these roles. [Migrate] is for the owner.
//
// # TLS
//
// The connections, and their encryption, are the pool's. pgx's default, sslmode=prefer, accepts a
// server without TLS or with any certificate. Across a network, ask for the server's certificate in
// the pool's URL:
//
//	postgres://user@host/db?sslmode=verify-full&sslrootcert=/etc/ssl/db-roots.pem
//
// A server whose certificate is not for this host, or not signed by these roots, is then refused
// before the password is sent. sslcert and sslkey name a certificate of the client's own.
//
// # The inbox
//
// A claimed dispatch ID is a row in inbox. A message that waits, is dead or was set aside is kept
// whole in inbox_parked. inbox_attempts counts the attempts that failed or never came back, and
// inbox_consumers says up to when each consumer has forgotten dispatch IDs.
//
// A handler's transaction begins with its claim, in one round trip:
//
//	BEGIN                                     at the level that the handler wants
//	SELECT set_config(…)                      idle timeout; lock timeout until the claim is made
//	SELECT pg_advisory_xact_lock(…)           of the key, if the handler wants order
//	INSERT INTO inbox … ON CONFLICT DO NOTHING
//	SELECT … FROM inbox_consumers             what is forgotten; is the key parked; end of the lock timeout
//
// Without an order, at READ COMMITTED, the INSERT includes the settings. Statements that a handler
// queues with [AtCommit] go with the COMMIT in a second round trip, so a handler that only writes
// takes two; with an Optimistic claim, which travels with the COMMIT, it takes one.
//
// The statements are separate because each must see the commits for which the earlier statements
// have waited. Above READ COMMITTED, all statements see the snapshot of the first. There the
// session takes the lock of the key in an earlier transaction, in the same message to the server,
// and hands the lock over. The forgotten time is then read with a row lock, which fails if the row
// has changed, and which a savepoint releases again. So a handler sees the effects of the previous
// handler of its key, at every level, and only copies of its message and messages of its key wait
// for a handler.
//
// A group of messages is claimed in the same way: one INSERT for all, in the order of their
// dispatch IDs, after the locks of all keys, in the order of the locks, so that groups do not
// deadlock.
//
// Locks of the inbox are taken in one order too: of a key, then a claim, then rows of parked
// messages. All changes of parked messages with a key (park, follow, take up, redrive, discard)
// happen under the lock of the key; a newcomer and a release therefore cannot pass each other.
//
// What survives a crash at which step:
//
//   - Before the COMMIT of a handler's transaction neither claim nor effects exist, after it both
//     do. If the answer to the COMMIT was lost, a further claim waits for the old backend and
//     tells.
//   - A message is parked in the transaction that claims it, and removed in the transaction of its
//     effects.
//   - The forgotten time is committed before a dispatch ID is removed.
//   - If a process is stopped within a transaction, the server ends the transaction after the idle
//     timeout; later statements of the process fail.
//
// # Assumptions
//
// Statements of relays and operators run at READ COMMITTED. If the pool's connections default to a
// stricter level, the statements may fail with a conflict and must be repeated; no other harm is
// done.
package postgres
