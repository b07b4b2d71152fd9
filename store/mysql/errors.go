package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
)

// The error numbers of the server that this package distinguishes. MySQL and MariaDB share the
// numbers below 1900.
const (
	erDiskFull             = 1021
	erCheckRead            = 1020 // MariaDB: innodb_snapshot_isolation
	erErrorOnWrite         = 1026
	erColumnIsThere        = 1060
	erOutOfMemory          = 1037
	erTooManyConnections   = 1040
	erOutOfResources       = 1041
	erServerShutdown       = 1053
	erBadField             = 1054
	erNormalShutdown       = 1077
	erTableFull            = 1114
	erNoSuchTable          = 1146
	erUnknownVariable      = 1193
	erLockWaitTimeout      = 1205
	erLockTableFull        = 1206
	erSavepointMissing     = 1305
	erLockDeadlock         = 1213
	erOptionPrevents       = 1290 // read_only: a replica
	erXARBRollback         = 1402
	erXARBTimeout          = 1613
	erXARBDeadlock         = 1614
	erReadOnlyTransaction  = 1792
	erReadOnlyMode         = 1836
	erConnectionKilled     = 1927 // MariaDB
	erRollbackDuringCommit = 3101 // MySQL: group replication
	erLockNoWait           = 3572
	erInteractionTimeout   = 4031 // MySQL: wait_timeout
)

// errorNumber returns the number of the server error that err wraps, or 0.
func errorNumber(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// missing tells whether err reports a missing table or column.
func missing(err error) bool {
	number := errorNumber(err)
	return number == erNoSuchTable || number == erBadField
}

// Retryable tells whether err is a deadlock, a lock wait timeout, or a snapshot outdated by another
// transaction.
func (s *Store) Retryable(err error) bool {
	if errors.Is(err, outbox.ErrCommitUnknown) {
		return false
	}
	switch errorNumber(err) {
	case erLockDeadlock, erLockWaitTimeout, erLockNoWait, erCheckRead, erXARBDeadlock, erRollbackDuringCommit:
		return true
	}
	return false
}

// Classify implements [inbox.ClaimStore]. Errors of the store's own statements, of the server and
// of the network are of the infrastructure. A transaction that was idle for too long is the
// handler's error.
func (s *Store) Classify(err error) inbox.ErrorClass {
	var network net.Error
	switch {
	case errors.Is(err, inbox.ErrCommitUnknown):
		return inbox.CommitUnknown
	case s.Retryable(err):
		return inbox.Conflict
	case errors.Is(err, errIdle):
		return inbox.HandlerError
	case sqlstore.IsOwn(err), errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, sql.ErrConnDone):
		return inbox.Infrastructure
	case errors.As(err, &network) && !errors.Is(err, context.DeadlineExceeded):
		return inbox.Infrastructure
	}
	switch errorNumber(err) {
	case erDiskFull, erErrorOnWrite, erOutOfMemory, erTooManyConnections, erOutOfResources, erServerShutdown, erNormalShutdown,
		erTableFull, erLockTableFull, erOptionPrevents, erReadOnlyTransaction, erReadOnlyMode, erConnectionKilled, erInteractionTimeout:
		return inbox.Infrastructure
	}
	return inbox.HandlerError
}

// Identity implements [outbox.Identifier] with the ID of the server. MariaDB servers have no unique
// ID: their identity is built from server_id, host name, port and data directory. A restore into
// the same server goes unnoticed.
func (s *Store) Identity(ctx context.Context) (string, error) {
	var name string
	err := s.core.One(ctx, s.db, []any{&name}, `SELECT @@server_uuid`)
	if errorNumber(err) == erUnknownVariable {
		err = s.core.One(ctx, s.db, []any{&name}, `SELECT CONCAT_WS(' ', @@server_id, @@hostname, @@port, @@datadir)`)
	}
	if err != nil {
		return "", fmt.Errorf("read the identity of the server: %w", err)
	}
	return name, nil
}
