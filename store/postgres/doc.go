// Package postgres keeps outboxes and inboxes in PostgreSQL, on pgx.
//
// [Migrate] makes the tables, [New] returns a [Store] over a pool, and the
// store is what producer.New and consumer.New take. A transaction is a [pgx.Tx].
// PostgreSQL 13 or later is needed, and nothing besides: no extension, no
// superuser, no session state, so a pooler in transaction mode may be in between
// ([Store.Listen] apart, which needs a session of its own and can do without).
//
// # The outbox
//
// An event is a row in outbox_events, which never changes, and a small row in
// outbox_queue, which is deleted when the event is confirmed. A failed event, and the later
// events of its key, have a row in outbox_parked instead. A row in outbox_shards
// says which relay owns a shard, until when, and at which epoch. The view
// outbox_status joins them: it says of every event that is not delivered what it waits for.
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
// A role that only writes events needs USAGE on the schema, INSERT and SELECT on
// outbox_events, UPDATE on its column digest, and INSERT on outbox_queue. A
// relay and an operator need SELECT, INSERT, UPDATE and DELETE on the tables whose names
// begin with outbox, and USAGE on the sequence outbox_tickets.
//
// # Assumptions
//
// Statements of relays and operators run at READ COMMITTED. If the pool's
// connections default to a stricter level, they may fail with a conflict and are
// to be repeated; they never do anything else.
package postgres
