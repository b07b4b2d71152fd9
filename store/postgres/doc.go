// Package postgres keeps outboxes and inboxes in PostgreSQL, on pgx.
//
// [Migrate] creates the tables, and [New] returns a [Store] over a pool, for producer.New and
// consumer.New. A transaction is a [pgx.Tx]. For services on database/sql, or on a library above
// it, [NewSQL] returns a [SQLStore], whose transactions are [sql.Tx]. The package needs PostgreSQL
// 13 or later, but no extension, no superuser and no session state, so it works behind a pooler in
// transaction mode. Only [Store.Listen], which is optional, needs a session.
//
// # The outbox
//
// An event is an immutable row in outbox_events, and a small row in outbox_queue, which is deleted
// when the event is confirmed. A failed event and the later events of its key have rows in
// outbox_parked instead. A row in outbox_shards names the owner of a shard, the end of its lease,
// and its epoch. The view outbox_status joins the tables: it shows the state of every event, and
// the reason why the event waits.
//
// What survives a crash at which step:
//
//   - Before the commit of the business transaction the event does not exist. After the commit, the
//     event and its queue row exist.
//   - An event that was published but not marked keeps its queue row and is published again, under
//     the same dispatch ID.
//   - Marks are committed without waiting for the disk. A crash of the database may undo the last
//     marks; their events are published again.
//   - All other commits wait for the disk.
//
// # Round trips of Transact
//
// A transaction of [Store.Transact] begins on the server with its first statement. BEGIN travels
// with a statement of this package, and with the caller's Exec with arguments, unless the pool has a
// tracer or does not prepare statements. Any other statement of the caller waits for BEGIN.
// Statements queued by [AtCommit] and events of producer.Writer.Write travel with the COMMIT, in one
// message to the server: after a failed statement the server runs no further statement. A transaction of
// queued statements takes one round trip. If the connection breaks meanwhile, the outcome is
// unknown, as for a COMMIT, unless the server has already refused to begin. Transact waits for the
// answer for up to 30 s, even if the context ends. Locks of keys (producer.Config.LockKeys) are
// therefore taken before.
//
// # Fencing
//
// Every statement that changes state owned by a relay locks the rows of its shards in the same
// statement (FOR KEY SHARE), for the owner and epoch that the relay assumes. A takeover locks the
// rows FOR UPDATE. So the statement of a relay that was stopped and woken either ends before the
// takeover begins, or waits for the takeover, checks the row again and changes nothing. Without the
// lock, a comparison of owner and epoch would see the row from the time when the statement began.
// Renewals change no key column and wait for no fenced statement.
//
// All statements lock in one order: rows of shards by ascending shard, then rows of events.
// Operators lock shard rows FOR UPDATE first, and so exclude relays for the time of one statement.
//
// # Privileges
//
// No role needs to own a table. migrations.PostgresGrants returns the statements that grant the
// privileges, and no more than needed, to the roles of a producer, a relay, a consumer, a janitor,
// an operator, a monitor and a service that answers requests. The contract of this store is tested
// with these roles. [Migrate] is for the owner.
//
// # TLS
//
// The pool makes the connections, and decides about encryption. pgx's default, sslmode=prefer,
// accepts a server without TLS or with any certificate. Across a network, ask for the server's
// certificate in the pool's URL:
//
//	postgres://user@host/db?sslmode=verify-full&sslrootcert=/etc/ssl/db-roots.pem
//
// A server without a certificate for this host, signed by these roots, is then refused before the
// password is sent. sslcert and sslkey name a certificate of the client.
//
// # The inbox
//
// A claimed dispatch ID is a row in inbox. A waiting, dead or set-aside message is kept whole in
// inbox_parked. inbox_attempts counts the attempts that failed or never came back. inbox_consumers
// holds the time up to which each consumer has forgotten dispatch IDs.
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
// queues with [AtCommit] go with the COMMIT in a second round trip. So a handler that only queues
// takes two round trips, or one with an Optimistic claim, which travels with the COMMIT.
//
// The statements are separate because each must see the commits for which earlier statements have
// waited. Above READ COMMITTED, all statements see the snapshot of the first statement. There the
// session takes the lock of the key in an earlier transaction, in the same message to the server,
// and hands the lock over. The forgotten time is then read with a row lock, which fails if the row
// has changed, and which a savepoint releases again. So a handler sees, at every level, the effects
// of the previous handler of its key, and only copies of its message and messages of its key wait
// for a handler.
//
// A group of messages is claimed in the same way: first the locks of all keys, in the order of the
// locks, then one INSERT in the order of the dispatch IDs. So groups do not deadlock.
//
// Locks of the inbox are taken in one order too: the lock of a key, then a claim, then rows of
// parked messages. All changes of parked messages with a key (park, follow, take up, redrive,
// discard) happen under the lock of the key, so a newcomer and a release cannot miss each other.
//
// What survives a crash at which step:
//
//   - Before the COMMIT of a handler's transaction neither claim nor effects exist. After the
//     COMMIT, the claim and the effects exist. If the answer to the COMMIT is lost, a further claim
//     waits for the old backend and tells the outcome.
//   - A message is parked in the transaction that claims it, and removed in the transaction of its
//     effects.
//   - The forgotten time is committed before a dispatch ID is removed.
//   - If a process is stopped within a transaction, the server ends the transaction after the idle
//     timeout. Later statements of the process fail.
//
// # Assumptions
//
// Statements of relays and operators run at READ COMMITTED. If the pool's connections default to a
// stricter level, the statements may fail with a conflict and must be repeated; the level does no
// other harm.
package postgres
