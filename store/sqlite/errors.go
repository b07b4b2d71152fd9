package sqlite

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
)

const codeIOErr = sqlite3.SQLITE_IOERR

// resultCode returns SQLite's extended result code in err, or 0.
func resultCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// primaryCode returns SQLite's primary result code in err, or 0.
func primaryCode(err error) int { return resultCode(err) & 0xff }

// missing tells whether err reports a missing table or column, by its text: SQLite has no code for
// it.
func missing(err error) bool {
	return resultCode(err) == sqlite3.SQLITE_ERROR && (strings.Contains(err.Error(), "no such table: ") || strings.Contains(err.Error(), "no such column: ") ||
		strings.Contains(err.Error(), "has no column named "))
}

// Retryable tells whether err is a busy database, a snapshot outdated by another transaction, or a
// locked table.
func (s *Store) Retryable(err error) bool {
	if errors.Is(err, outbox.ErrCommitUnknown) {
		return false
	}
	if errors.Is(err, errBusy) {
		return true
	}
	switch primaryCode(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED: // with SQLITE_BUSY_SNAPSHOT and the like
		return true
	}
	return false
}

// Classify implements [inbox.ClaimStore]. Errors of the store's own statements, of the disk and of
// the file are of the infrastructure. A nested transaction, an interrupted statement, and a
// transaction that was idle for too long are the handler's errors.
func (s *Store) Classify(err error) inbox.ErrorClass {
	switch {
	case errors.Is(err, inbox.ErrCommitUnknown):
		return inbox.CommitUnknown
	case s.Retryable(err):
		return inbox.Conflict
	case errors.Is(err, ErrNested), errors.Is(err, errIdle):
		return inbox.HandlerError
	case sqlstore.IsOwn(err), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return inbox.Infrastructure
	}
	switch primaryCode(err) {
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN,
		sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_READONLY,
		sqlite3.SQLITE_PERM, sqlite3.SQLITE_INTERNAL:
		return inbox.Infrastructure
	}
	return inbox.HandlerError
}
