package sqlite_test

import (
	"database/sql"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/internal/sqlstore/sqlstoretest"
	"github.com/boxpair/boxpair/store/sqlite"
)

func keepsAll(db *sql.DB) (sqlstoretest.Store, error) {
	return sqlite.New(db, sqlite.Config{AllAttempts: true})
}

func TestAllAttemptsAreKeptOnRequest(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	store, err := sqlite.New(db, sqlite.Config{AllAttempts: true})
	if err != nil {
		t.Fatal(err)
	}
	r := sqlstoretest.ConfirmedAttempt(t, store)
	var state, at string
	err = db.QueryRowContext(t.Context(), `SELECT state, delivered_at FROM boxpair_outbox_status WHERE dispatch_id = ?`, r.ID.String()).Scan(&state, &at)
	if err != nil || state != "delivered" || at == "" {
		t.Errorf("state is %q, delivered at %q, %v", state, at, err)
	}
}

func TestAppliedMessagesAreInTheHistoryOnRequest(t *testing.T) { contract.AllAttempts(t, keepsAll) }

func TestStatusSaysWhatBecameOfAMessage(t *testing.T) {
	contract.InboxStatus(t, func(id uuid.UUID) any { return id[:] })
}

func TestStatusSaysThatARouteDoesNotWork(t *testing.T) {
	contract.RouteStatus(t, func(id uuid.UUID) any { return id.String() })
}
