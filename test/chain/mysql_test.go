package chain

import (
	"context"
	"database/sql"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport/memory"
)

var placeholder = regexp.MustCompile(`\$\d+`)

// inMySQL returns a statement of the rig as MySQL reads it: key is a word of its own there.
func inMySQL(statement string) string {
	statement = placeholder.ReplaceAllString(statement, "?")
	return regexp.MustCompile(`\bkey\b`).ReplaceAllString(statement, "`key`")
}

// newMySQL returns a MySQL or MariaDB database of this test's own.
func newMySQL(t *testing.T) *database[*sql.Tx] {
	t.Helper()
	db, err := mysql.Open(testenv.MySQL(t))
	ok(t, err)
	t.Cleanup(func() { _ = db.Close() })
	_, err = mysql.Migrate(t.Context(), db, mysql.Config{})
	ok(t, err)
	for _, statement := range []string{
		"CREATE TABLE aggregates (`key` VARCHAR(200) PRIMARY KEY, n INT NOT NULL)",
		"CREATE TABLE effects (seq BIGINT AUTO_INCREMENT PRIMARY KEY, consumer VARCHAR(200) NOT NULL, dispatch VARCHAR(36) NOT NULL, " +
			"`key` VARCHAR(200) NOT NULL, content VARCHAR(200) NOT NULL)",
	} {
		_, err = db.ExecContext(t.Context(), statement)
		ok(t, err)
	}
	store, err := mysql.New(db, mysql.Config{})
	ok(t, err)
	d := &database[*sql.Tx]{
		store: store, schema: "boxpair_",
		next: func(ctx context.Context, tx *sql.Tx, key string) (n int, err error) {
			_, err = tx.ExecContext(ctx, "INSERT INTO aggregates (`key`, n) VALUES (?, 1) ON DUPLICATE KEY UPDATE n = n + 1", key)
			if err == nil {
				err = tx.QueryRowContext(ctx, "SELECT n FROM aggregates WHERE `key` = ?", key).Scan(&n)
			}
			return n, err
		},
	}
	onSQL(t, d, db, inMySQL)
	return d
}

// Writers at the same time, two relays, a third that died with every shard, and every message three
// times, to two processes of a service.
func TestChainOnMySQLKeepsOrderWithOneEffectEach(t *testing.T) {
	t.Parallel()
	const writers, each = 4, 5
	db := newMySQL(t)
	broker, err := memory.New(memory.Config{})
	ok(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	out := outboxOf(t, db)
	dead, err := db.store.Acquire(t.Context(), "dead", 2*time.Second, idgen.Shards)
	ok(t, err)
	if len(dead) != idgen.Shards {
		t.Fatalf("the dead relay had %d shards", len(dead))
	}
	for range 2 {
		apply(t, db, broker.Subscriber("stock"), "placed", "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
		startRelay(t, out, thrice(broker), relay.Config{})
	}
	keys := []string{"a", "b", "c"}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() { placeAll(t, db, out, "placed", each, keys...) })
	}
	wg.Wait()
	db.wantEffects(t, "stock", writers*each*len(keys))
	for _, key := range keys {
		db.wantOrder(t, "stock", key, writers*each)
	}
	db.wantDrained(t)
	lost, err := db.store.Mark(t.Context(), "dead", []outbox.Mark{{Lease: dead[0].Lease, Seq: 1}})
	if err != nil || len(lost) != 1 {
		t.Errorf("a mark of the dead relay gives %v, %v", lost, err)
	}
}
