package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

func TestRequestContract(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 30 })
	open := fixture(pool)
	storetest.Requests(t, func(t *testing.T) storetest.RequestFixture[pgx.Tx] {
		f := open(t)
		return storetest.RequestFixture[pgx.Tx]{Store: f.Store.(*postgres.Store), Begin: f.Begin, Commit: f.Commit, Rollback: f.Rollback}
	})
}

func TestClaimOfARequestLeavesTheLockTimeoutAsItWas(t *testing.T) {
	t.Parallel()
	pool := newPool(t, nil)
	store := newStore(t, pool, postgres.Config{})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SET LOCAL lock_timeout = '7s'`); err != nil {
		t.Fatal(err)
	}
	if _, err := store.ClaimRequest(t.Context(), tx, inbox.Request{Key: "k"}, 1); err != nil {
		t.Fatal(err)
	}
	var timeout string
	if err := tx.QueryRow(t.Context(), `SHOW lock_timeout`).Scan(&timeout); err != nil || timeout != "7s" {
		t.Errorf("lock_timeout is %q, %v", timeout, err)
	}
}
