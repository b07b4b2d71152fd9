package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

func init() { children["disk error"] = commitWithDiskError }

// commitWithDiskError commits while the file system refuses to write: files must not grow beyond
// their current size.
func commitWithDiskError(args []string) {
	ctx := context.Background()
	db := must(sqlite.Open(args[0]))
	store := must(sqlite.New(db, sqlite.Config{}))
	transact := func() error {
		return store.Transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
			id := uuid.NewString()
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES (?)`, id); err != nil {
				return err
			}
			_, err := store.Append(ctx, tx, uuid.New(), []outbox.Record{record(id, 1, "placed")})
			return err
		})
	}
	check(transact())
	size := must(os.Stat(args[0] + "-wal")).Size()
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	check(syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	limit.Cur = uint64(size) + 100
	check(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	err := transact()
	fmt.Println(errors.Is(err, outbox.ErrCommitUnknown), errors.Is(err, inbox.ErrCommitUnknown),
		store.Retryable(err), store.Classify(err) == inbox.CommitUnknown)
	limit.Cur = limit.Max
	check(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	check(transact())
	check(db.Close())
}

func TestCommitThatEndsInADiskErrorHasAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	db, path := database(t)
	run(t, db, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	cmd, lines := child(t, "disk error", path)
	if !lines.Scan() {
		t.Fatal("child has failed")
	}
	if got := lines.Text(); got != "true true false true" {
		t.Errorf("unknown to the producer, to the consumer, retryable, class: %s", got)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	orders, events := number(t, db, `SELECT count(*) FROM orders`), number(t, db, `SELECT count(*) FROM boxpair_outbox_events`)
	if orders != events || orders < 2 {
		t.Errorf("%d orders and %d events", orders, events)
	}
	checkIntegrity(t, db)
}

func TestErrorsShowNoContent(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	write(t, s, record("secret-key", 1, "secret-payload"))
	err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{record("secret-key", 1, "secret-other")})
		return err
	})
	if !errors.Is(err, outbox.ErrConflict) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error is %v", err)
	}
}
