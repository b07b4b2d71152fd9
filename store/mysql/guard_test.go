package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/outbox"
)

// accounts makes a table with two rows for a deadlock.
func accounts(t *testing.T, db *sql.DB) {
	t.Helper()
	run(t, db, `CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)`)
	run(t, db, `INSERT INTO accounts VALUES (1, 0), (2, 0)`)
}

const touch = `UPDATE accounts SET n = n + 1 WHERE id = ?`

// deadlock makes tx the victim of a deadlock, and returns the error of its statement. The other
// transaction has changed more rows, so the server chooses tx.
func deadlock(t *testing.T, db *sql.DB, tx *sql.Tx) error {
	t.Helper()
	run(t, tx, touch, 1)
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	run(t, other, `CREATE TEMPORARY TABLE ballast (n INT) ENGINE = InnoDB`)
	run(t, other, `INSERT INTO ballast VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)`)
	run(t, other, `INSERT INTO accounts SELECT n + 10, n FROM ballast`)
	run(t, other, touch, 2)
	done := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(t.Context(), touch, 1)
		done <- err
	}()
	var failed error
	for range 2 { // the second waiter finds the deadlock
		if _, failed = tx.ExecContext(t.Context(), touch, 2); failed != nil {
			break
		}
	}
	if err := <-done; err != nil {
		t.Fatalf("the other transaction was the victim: %v", err)
	}
	return failed
}

func TestTransactionThatTheServerEndedGoesOnWithNothing(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	accounts(t, db)
	s := newStore(t, db)
	err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if _, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{record("key", 1, "before")}); err != nil {
			return err
		}
		if err := deadlock(t, db, tx); !s.Retryable(err) {
			t.Errorf("the deadlock gives %v", err)
		}
		// The error is swallowed. Without the guard the next statement would be committed at once.
		if _, err := tx.ExecContext(ctx, `INSERT INTO accounts VALUES (99, 0)`); !errors.Is(err, mysql.ErrTransactionLost) {
			t.Errorf("a later statement gives %v", err)
		}
		return nil
	})
	if !errors.Is(err, mysql.ErrTransactionLost) || !s.Retryable(err) || errors.Is(err, outbox.ErrCommitUnknown) {
		t.Errorf("Transact gives %v", err)
	}
	if n := number(t, db, `SELECT COUNT(*) FROM accounts WHERE id = 99`) + number(t, db, `SELECT COUNT(*) FROM boxpair_outbox_events`); n != 0 {
		t.Errorf("%d rows of the lost transaction are there", n)
	}
}

func TestSwallowedDeadlockOfAHandlerCommitsNothing(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	f := contract.Inbox(t, db, s)
	accounts(t, db)
	r, err := s.Register(t.Context(), "service/handler", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	claim := inbox.Claim{Consumer: r.Consumer, ID: uuid.New()}
	verdict, err := s.Apply(t.Context(), claim, func(ctx context.Context, tx *sql.Tx) error {
		_ = deadlock(t, db, tx)
		_ = f.Effect(ctx, tx, "alone")
		return nil
	})
	if verdict != inbox.None || s.Classify(err) != inbox.Conflict {
		t.Errorf("Apply gives %v, %v", verdict, err)
	}
	if n := number(t, db, `SELECT COUNT(*) FROM effects`) + number(t, db, `SELECT COUNT(*) FROM boxpair_inbox`); n != 0 {
		t.Errorf("%d rows of the lost transaction are there", n)
	}
}

func TestLockWaitTimeoutEndsTheTransaction(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	accounts(t, db)
	s := newStore(t, db)
	holder, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback() }()
	run(t, holder, touch, 1)
	err = s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		run(t, tx, touch, 2)
		run(t, tx, `SET SESSION innodb_lock_wait_timeout = 1`)
		defer func() { _, _ = db.ExecContext(ctx, `DO 0`) }()
		if _, err := tx.ExecContext(ctx, touch, 1); !s.Retryable(err) {
			t.Errorf("the timeout gives %v", err)
		}
		return nil
	})
	if !errors.Is(err, mysql.ErrTransactionLost) {
		t.Errorf("Transact gives %v", err)
	}
	if n := number(t, db, `SELECT n FROM accounts WHERE id = 2`); n != 0 {
		t.Error("a part of the transaction is committed")
	}
}

func TestHandlerThatIsIdleForTooLongIsEndedByTheServer(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	f := contract.Inbox(t, db, s)
	r, err := s.Register(t.Context(), "service/handler", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	claim := inbox.Claim{Consumer: r.Consumer, ID: uuid.New(), IdleTimeout: time.Second, LockTimeout: 20 * time.Second}
	over, result := make(chan struct{}), make(chan error, 1)
	for begins := false; !begins; {
		begun, start := make(chan struct{}), time.Now()
		go func() {
			_, err := s.Apply(t.Context(), claim, func(ctx context.Context, tx *sql.Tx) error {
				close(begun)
				<-over // without the timeout the copy below would wait for this handler
				return f.Effect(ctx, tx, "late")
			})
			result <- err
		}()
		select {
		case <-begun:
			begins = true
		case err := <-result: // the machine was too slow: the transaction was idle before the handler
			if time.Since(start) < claim.IdleTimeout {
				t.Fatalf("Apply gives %v before the handler", err)
			}
		}
	}
	copied := claim
	copied.IdleTimeout = 30 * time.Second
	verdict, err := s.Apply(t.Context(), copied, func(ctx context.Context, tx *sql.Tx) error { return f.Effect(ctx, tx, "copy") })
	if err != nil || verdict != inbox.Applied {
		t.Errorf("the copy gives %v, %v", verdict, err)
	}
	close(over)
	if err := <-result; s.Classify(err) != inbox.HandlerError {
		t.Errorf("the idle handler gives %v, class %v", err, s.Classify(err))
	}
	if names, err := f.Effects(t.Context()); err != nil || len(names) != 1 || names[0] != "copy" {
		t.Errorf("effects are %v, %v", names, err)
	}
}

func TestLockTimeoutOfAClaimIsNotThatOfTheHandler(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	contract.Inbox(t, db, s)
	r, err := s.Register(t.Context(), "service/handler", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	usual := number(t, db, `SELECT @@innodb_lock_wait_timeout`)
	claim := inbox.Claim{Consumer: r.Consumer, ID: uuid.New(), LockTimeout: 3 * time.Second, IdleTimeout: 30 * time.Second}
	_, err = s.Apply(t.Context(), claim, func(ctx context.Context, tx *sql.Tx) error {
		var lock, idle int
		err := tx.QueryRowContext(ctx, `SELECT @@innodb_lock_wait_timeout, `+idleOf).Scan(&lock, &idle)
		if lock != usual || idle != 30 {
			t.Errorf("in the handler the timeouts are %d s for locks and %d s when idle", lock, idle)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var idle int
	if err := tx.QueryRowContext(t.Context(), `SELECT `+idleOf).Scan(&idle); err != nil || 0 < idle && idle <= 30 {
		t.Errorf("a transaction of the user's has a timeout of %d s, %v", idle, err)
	}
}

// idleOf reads the limit of idle transactions. MariaDB has a setting for transactions, in which 0
// is no bound.
const idleOf = `/*M! @@idle_transaction_timeout + 0 * */ @@wait_timeout`

func TestConnectionInThePoolLivesAsLongAsTheServerSays(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	db.SetMaxOpenConns(1)
	s := newStore(t, db)
	usual := number(t, db, `SELECT @@wait_timeout`)
	if _, err := s.Register(t.Context(), "service/handler", time.Hour); err != nil {
		t.Fatal(err)
	}
	if now := number(t, db, `SELECT @@wait_timeout`); now != usual {
		t.Errorf("the server closes a connection in the pool after %d s instead of %d", now, usual)
	}
}

func TestLockTimeoutOfARequestEndsWithItsTransaction(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	usual := number(t, db, `SELECT @@innodb_lock_wait_timeout`)
	r := inbox.Request{Scope: "scope", Key: "key"}
	first, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback() }()
	if _, err := s.ClaimRequest(t.Context(), first, r, time.Second); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	second, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ClaimRequest(t.Context(), second, r, time.Second); !errors.Is(err, inbox.ErrInProgress) {
		t.Errorf("the second claim gives %v", err)
	}
	if err := second.Rollback(); err != nil {
		t.Fatal(err)
	}
	var now int
	if err := conn.QueryRowContext(t.Context(), `SELECT @@innodb_lock_wait_timeout`).Scan(&now); err != nil || now != usual {
		t.Errorf("the next one on the connection waits %d s for locks, not %d s: %v", now, usual, err)
	}
}

func TestSessionsAreAsTheStoreNeedsThem(t *testing.T) {
	t.Parallel()
	_, dsn := database(t)
	cfg, err := driver.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Params = map[string]string{"sql_mode": "''", "time_zone": "'+05:30'", "autocommit": "0"}
	cfg.ClientFoundRows = true
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	s := newStore(t, db)
	run(t, db, `CREATE TABLE short (name VARCHAR(3))`)
	if _, err := db.ExecContext(t.Context(), `INSERT INTO short VALUES ('too long')`); err == nil {
		t.Error("a text that is too long was cut off")
	}
	run(t, db, `INSERT INTO short VALUES ('abc')`)
	other := open(t, dsn)
	if n := number(t, other, `SELECT COUNT(*) FROM short`); n != 1 {
		t.Error("a statement outside of a transaction was not committed")
	}
	r := record("key", 1, "payload")
	write(t, s, r)
	write(t, s, r) // known, although the connection counts found rows
	queued, err := s.FetchKey(t.Context(), r.Shard, "key", 0, 10)
	if err != nil || len(queued) != 1 {
		t.Fatalf("fetched %v, %v", queued, err)
	}
	if d := time.Since(queued[0].Stamp); d < -time.Minute || d > time.Minute {
		t.Errorf("the stamp is %v away from now in a session of another time zone", d)
	}
}

func TestDatabaseOfAnotherDriverIsRefused(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("mysql", "nobody:secret@tcp(127.0.0.1:1)/none")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := mysql.New(db, mysql.Config{}); err == nil || !strings.Contains(err.Error(), "mysql.Open") {
		t.Errorf("New gives %v", err)
	}
	if _, err := mysql.New(db, mysql.Config{Wrapped: true}); err != nil {
		t.Errorf("New of a wrapped one gives %v", err)
	}
	if _, err := mysql.New(nil, mysql.Config{Prefix: strings.Repeat("x", 41)}); err == nil ||
		!strings.Contains(err.Error(), "prefix") || !strings.Contains(err.Error(), "nil") {
		t.Errorf("New gives %v", err)
	}
	for _, dsn := range []string{"root:secret@nonsense", "root:secret@tcp(127.0.0.1:1)/"} {
		if _, err := mysql.Open(dsn); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open gives %v", err)
		}
	}
}
