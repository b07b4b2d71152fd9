// Package sqlite keeps outboxes and inboxes in SQLite, on database/sql and the
// driver modernc.org/sqlite, which needs no C compiler.
//
// [Open] opens a database file with the required settings, [Migrate] creates the tables, and [New]
// makes the store of a producer and of a consumer. The type of a transaction is *sql.Tx. The
// service's own tables live in the same file, so that a business change and its events are one
// transaction.
//
// # One writer
//
// SQLite has one writer at a time. Every writing transaction that this package begins takes the
// write lock at its start (BEGIN IMMEDIATE). Transactions on a database opened by [Open] first take
// turns within the process, in the order of asking, since SQLite's own lock has no order and is
// polled. Transactions begun with sql.TxOptions{ReadOnly: true} and plain reads do not wait: the
// journal is a write-ahead log.
//
// A handler therefore must not begin another write transaction on its database while its own
// transaction is open: the handler would wait for itself. With the context of the handler the
// attempt fails at once ([ErrNested]), with another context it fails with a busy error after the
// busy timeout. Reads outside of the transaction are allowed if the pool has a connection left:
// Open sets no limit. They do not see the changes of the transaction.
//
// Since writes are serialised, events get their IDs in the order of commits, and no event becomes
// visible below a visible event. Keys need no locks of their own.
//
// # A transaction that SQLite ended
//
// After some errors SQLite rolls the whole transaction back by itself: a full disk, an I/O error, a
// writing statement whose context ended. The connection is then in autocommit mode, and without a
// guard the next statement of code that ignored the error would be committed alone, even if COMMIT
// fails later. A database opened by Open refuses every further statement of such a transaction with
// [ErrTransactionLost]. [New] therefore requires a database of Open, unless [Config].Unguarded is
// set.
//
// Any other failed statement changes nothing, and leaves the transaction open. So, unlike on
// PostgreSQL, a handler that swallows the error and returns nil commits its other statements. A
// failed write of events is an exception, for example when a dispatch ID belongs to different
// content: the store rolls the transaction back at once, even within a savepoint. Every later call
// on the transaction, COMMIT included, returns sql.ErrTxDone.
//
// # What survives a crash
//
// Open sets synchronous=FULL: COMMIT returns when the write-ahead log is on disk, on macOS too. A
// killed process or a power failure leaves committed transactions whole, and no trace of open
// transactions. A COMMIT that ends in an I/O error is reported as a commit with an unknown outcome,
// since its log may be found whole after a restart.
//
// # Caller's transactions
//
// A transaction of the caller's own should take the write lock at its start, as every transaction
// of a database opened by Open does. A transaction that reads first and writes later, under BEGIN
// DEFERRED, fails with SQLITE_BUSY_SNAPSHOT when another transaction has committed in between;
// [Store.Retryable] returns true for this error, and the transaction may be run again from its
// start.
//
// # Assumptions
//
// The file is on a local disk: SQLite's locks are unreliable on network file systems. Several
// processes on one machine may use the file at once. The database's clock is the machine's clock;
// times are kept as microseconds since 1970, UTC.
//
// # Limitations
//
// A process that is stopped (SIGSTOP) within a transaction holds the write lock until the process
// continues or dies. No signal connects processes: relays in other processes poll. In-memory
// databases are refused, since each connection would see a database of its own.
package sqlite
