package sqlite

import (
	"database/sql"
	"database/sql/driver"
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

const codeIOErr = sqlite3.SQLITE_IOERR

// commitError is a COMMIT that failed.
type commitError struct {
	err     error
	unknown bool // the log may be found whole after a restart
}

func (e *commitError) Error() string { return "commit: " + e.err.Error() }

// Unwrap gives what went wrong and what it means to either side.
func (e *commitError) Unwrap() []error {
	if e.unknown {
		return []error{e.err, producer.ErrCommitUnknown, consumer.ErrCommitUnknown}
	}
	return []error{e.err, consumer.ErrRolledBack}
}

// ownError marks an error of the store's own statements, which no handler is to blame for.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// resultCode returns SQLite's extended result code in err, or 0.
func resultCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// primaryCode returns the part of the result code that is not the extension.
func primaryCode(err error) int { return resultCode(err) & 0xff }

// Retryable tells whether err is a database that was busy, a snapshot that another
// transaction had outdated, or a locked table.
func (s *Store) Retryable(err error) bool {
	if errors.Is(err, producer.ErrCommitUnknown) {
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

// Classify says what err means for a message. Errors of the store's own statements, of the disk
// and of the file are of the infrastructure. A transaction that its handler left idle for too
// long, or in which a statement was interrupted, is the handler's error.
func (s *Store) Classify(err error) consumer.ErrorClass {
	var own *ownError
	switch {
	case errors.Is(err, consumer.ErrCommitUnknown):
		return consumer.CommitUnknown
	case s.Retryable(err):
		return consumer.Conflict
	case errors.Is(err, ErrNested), errors.Is(err, errIdle):
		return consumer.HandlerError
	case errors.As(err, &own), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return consumer.Infrastructure
	}
	switch primaryCode(err) {
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN,
		sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_READONLY,
		sqlite3.SQLITE_PERM, sqlite3.SQLITE_INTERNAL:
		return consumer.Infrastructure
	}
	return consumer.HandlerError
}
