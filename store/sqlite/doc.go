// Package sqlite keeps outboxes and inboxes in SQLite, on database/sql and the
// driver modernc.org/sqlite, which needs no C compiler.
//
// [Open] opens a database file the way this package needs it, [Migrate] creates
// the tables, and [New] makes the store, which is a producer's store and a
// consumer's. The type of a transaction is *sql.Tx. The
// service's own tables live in the same file: that is what makes a business change
// and its events one transaction.
//
// # One writer
//
// SQLite has one writer at a time. Every transaction that this package begins
// takes the write lock at its start (BEGIN IMMEDIATE), and a database opened by [Open]
// makes all its transactions take turns in the order of asking, within the
// process, before they meet SQLite's own lock, which has no order and is polled.
// Transactions begun with sql.TxOptions{ReadOnly: true} and plain reads wait for
// nobody: the journal is a write-ahead log.
//
// A handler therefore must not begin another write transaction on its database
// while its own is open: it would wait for itself. With the context that the
// handler was given this is an error at once ([ErrNested]), with any other it is a
// busy error after the busy timeout. Reads outside of the transaction are fine, if the
// pool has a connection left: Open sets no limit. They do not see what the transaction has changed.
//
// Since writes are serialised, events get their IDs in the order of commits, and no
// event ever becomes visible below one that is visible already. Keys need no
// locks of their own.
//
// # A transaction that SQLite ended
//
// After some errors SQLite rolls the whole transaction back by itself: a full disk, an I/O
// error, a writing statement whose context ended. The connection is in autocommit
// mode then, and without a guard the next statement of code that ignored the error
// would be committed alone, whatever COMMIT answers later. A database opened by Open
// refuses every further statement of such a transaction with [ErrTransactionLost].
// This is why [New] asks for such a database, unless told otherwise by [Config].Unguarded.
//
// Any other failed statement leaves the transaction as it was before that
// statement, here as in SQLite everywhere. So, unlike on PostgreSQL, a handler that
// swallows such an error and returns nil commits what its other statements did. A
// write of events is the exception: when one fails, as it does when a dispatch ID is
// taken by other content, the store rolls the transaction back at once. Whatever is tried on
// it afterwards gives sql.ErrTxDone, COMMIT included, within savepoints as well.
//
// # What survives a crash
//
// Open sets synchronous=FULL: COMMIT returns when the write-ahead log is on disk, also
// on macOS. A killed process or a power failure leaves committed transactions
// whole and others without a trace. A COMMIT that ends in an I/O error has an
// unknown outcome, since its log may be found whole after a restart; it is reported as such.
//
// # Caller's transactions
//
// A transaction of the caller's should take the write lock at its start, as those
// of a database opened by Open do. One that reads first and writes later, under BEGIN
// DEFERRED, fails with SQLITE_BUSY_SNAPSHOT when another transaction has committed in between;
// [Store.Retryable] tells that such an error is worth another try from the start.
//
// # Assumptions
//
// The file is on a local disk: SQLite's locks are not to be trusted on network file
// systems. Several processes on one machine may use it at once. The database's clock is
// that of the machine; times are kept as microseconds since 1970, UTC.
//
// # Limitations
//
// A process that is stopped (SIGSTOP) within a transaction holds the write lock
// until it goes on or dies; nobody can take it away. There is no signal between
// processes: relays in other processes poll. In-memory databases are refused, since each connection
// would see its own.
package sqlite
