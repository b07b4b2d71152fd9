package sqlite_test

import (
	"database/sql"
	"testing"

	"github.com/boxpair/boxpair/store/storetest"
)

func TestRequestContract(t *testing.T) {
	t.Parallel()
	storetest.Requests(t, func(t *testing.T) storetest.RequestFixture[*sql.Tx] {
		db, _ := database(t)
		store := newStore(t, db)
		f := outbox(db, store)
		return storetest.RequestFixture[*sql.Tx]{Store: store, Begin: f.Begin, Commit: f.Commit, Rollback: f.Rollback, OneWriter: true}
	})
}
