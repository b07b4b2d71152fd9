// Package mysql keeps outboxes and inboxes in MySQL 8 (8.0.16 or later) or MariaDB (10.6 or later),
// on database/sql and the driver github.com/go-sql-driver/mysql.
//
// [Open] opens a database the way this package needs it, [Migrate] creates
// the tables, and [New] makes the store, which is a producer's store and a
// consumer's. The type of a transaction is *sql.Tx. The
// service's own tables live in the same database: that is what makes a business change
// and its events one transaction. They have to be InnoDB.
//
// # Writers of a shard take turns
//
// Nothing tells on MySQL which transactions may still commit an event with a lower ID than one that
// is visible. So IDs are given out under a lock of the shard, which [Store.Append] takes and which
// lasts to the end of the transaction: the events of a shard become visible in the order of their
// IDs. Of two transactions that write events of one shard the second waits for the end of the
// first, and two that write to several shards in several calls can meet a deadlock. Write the
// events late in a transaction, all in one call, and keep it short; outbox.Transact repeats it
// after a deadlock.
//
// # A transaction that the server ended
//
// After a deadlock InnoDB rolls the whole transaction back, and the connection is in autocommit
// mode: the next statement of code that ignored the error would be committed alone. After a lock
// wait timeout it takes back one statement only. On a database opened by Open either refuses every
// further statement of the transaction with [ErrTransactionLost], and its COMMIT. This is why [New]
// asks for such a database.
//
// Any other failed statement leaves the transaction as it was before that
// statement. So, unlike on PostgreSQL, a handler that
// swallows such an error and returns nil commits what its other statements did. A
// failed write of events is not of that kind: the store rolls the transaction back.
//
// # Sessions
//
// Open sets READ COMMITTED, strict mode and autocommit for its sessions; a transaction may ask for
// another level in sql.TxOptions. Times are numbers by the server's UTC clock, so the time zone of
// a session changes nothing. Texts are kept as bytes.
//
// # Limitations
//
// Statements that commit implicitly (CREATE, ALTER, TRUNCATE, LOCK TABLES and the like) end a
// transaction without a trace: a handler, or a function given to Transact, must not run them, nor
// COMMIT or ROLLBACK. There is no signal between processes: relays in other processes poll.
// Timeouts of claims are whole seconds. The store needs one primary that takes all writes, as it
// relies on row locks: a cluster that is written to at several nodes has none between them. READ
// COMMITTED needs binlog_format ROW or MIXED. A payload has to fit into the server's
// max_allowed_packet. docs/mysql.md has the differences from PostgreSQL in one table.
package mysql
