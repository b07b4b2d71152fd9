// Package mysql keeps outboxes and inboxes in MySQL 8 (8.0.16 or later) or MariaDB (10.6 or later),
// on database/sql and the driver github.com/go-sql-driver/mysql.
//
// [Open] opens a database with the required settings, [Migrate] creates the tables, and [New] makes
// the store of a producer and of a consumer. The type of a transaction is *sql.Tx. The service's
// own tables live in the same database, so that a business change and its events are one
// transaction. All tables must be InnoDB.
//
// # Writers of a shard take turns
//
// MySQL does not tell which transactions may still commit an event with an ID below a visible
// event. Therefore [Store.Append] gets IDs under a lock of the shard, which lasts until the end of
// the transaction: the events of a shard become visible in the order of their IDs. Of two
// transactions with events of one shard, the second waits for the end of the first. Transactions
// that write to several shards in several calls can deadlock. Write all events in one call, late in
// a short transaction; outbox.Transact repeats a transaction after a deadlock.
//
// # A transaction that the server ended
//
// After a deadlock InnoDB rolls the whole transaction back, and the connection is in autocommit
// mode: the next statement of code that ignored the error would be committed alone. After a lock
// wait timeout InnoDB rolls back only one statement. After either error, a database opened by Open
// refuses every further statement of the transaction, and its COMMIT, with [ErrTransactionLost].
// [New] therefore requires a database of Open.
//
// Any other failed statement changes nothing, and leaves the transaction open. So, unlike on
// PostgreSQL, a handler that swallows the error and returns nil commits its other statements. A
// failed write of events is an exception: the store rolls the transaction back.
//
// # Sessions
//
// Open sets READ COMMITTED, strict mode and autocommit for its sessions; a transaction may ask for
// another level in sql.TxOptions. Times are numbers by the server's UTC clock, so the time zone of
// a session changes nothing. Texts are kept as bytes.
//
// # Limitations
//
// Statements that commit implicitly (CREATE, ALTER, TRUNCATE, LOCK TABLES and the like) are refused
// in a handler and in a function given to Transact, as are COMMIT and ROLLBACK. A procedure that
// commits is detected afterwards, with an error that wraps inbox.ErrEnded. In a transaction of the
// caller's own such statements end the transaction without an error. No signal connects processes:
// relays in other processes poll. Timeouts of claims are whole seconds. The store relies on row
// locks, so that it needs one primary for all writes: a cluster with several writable nodes has no
// row locks between nodes. READ COMMITTED needs binlog_format ROW or MIXED. A payload has to fit
// into the server's max_allowed_packet. docs/mysql.md lists the differences from PostgreSQL.
package mysql
