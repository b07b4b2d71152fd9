package mysql_test

import (
	"database/sql"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/internal/sqlstore/sqlstoretest"
	"github.com/boxpair/boxpair/store/mysql"
)

func keepsAll(db *sql.DB) (sqlstoretest.Store, error) {
	return mysql.New(db, mysql.Config{AllAttempts: true})
}

func TestAllAttemptsAreKeptOnRequest(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	store, err := mysql.New(db, mysql.Config{AllAttempts: true})
	if err != nil {
		t.Fatal(err)
	}
	r := sqlstoretest.ConfirmedAttempt(t, store)
	var state, key, at string
	err = db.QueryRowContext(t.Context(), "SELECT state, `key`, delivered_at FROM boxpair_outbox_status WHERE dispatch_id = ?", r.ID.String()).
		Scan(&state, &key, &at)
	if err != nil || state != "delivered" || key != "key" || at == "" {
		t.Errorf("state is %q of key %q, delivered at %q, %v", state, key, at, err)
	}
}

func TestAppliedMessagesAreInTheHistoryOnRequest(t *testing.T) { contract.AllAttempts(t, keepsAll) }

func TestStatusSaysWhatBecameOfAMessage(t *testing.T) {
	contract.InboxStatus(t, func(id uuid.UUID) any { return id.String() })
}

func TestStatusSaysThatARouteDoesNotWork(t *testing.T) {
	contract.RouteStatus(t, func(id uuid.UUID) any { return id.String() })
}
