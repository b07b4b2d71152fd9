package sqlite_test

import (
	"database/sql"
	"testing"

	"github.com/boxpair/boxpair/store/internal/sqlstore/sqlstoretest"
	"github.com/boxpair/boxpair/store/storetest"
)

const (
	notPast = "every statement goes through the connection's guard"
	noRoles = "SQLite has no users and no roles"
	noPath  = "the order in which SQLite looks for names is fixed"
)

var contract = sqlstoretest.Contract{
	Open: func(t *testing.T) (*sql.DB, sqlstoretest.Store) {
		db, _ := database(t)
		return db, newStore(t, db)
	},
	Table:     `CREATE TABLE effects (id INTEGER PRIMARY KEY, name TEXT NOT NULL)`,
	OneWriter: true, KeepsCommits: true,
	State: []string{"PRAGMA query_only", "PRAGMA recursive_triggers", "PRAGMA read_uncommitted"},
	Changes: map[string]storetest.MisuseChange{
		"changes a setting for the session":          {SQL: "PRAGMA recursive_triggers = ON"},
		"changes the isolation level of the session": {SQL: "PRAGMA read_uncommitted = ON"},
		"defines a table":                            {SQL: "CREATE TABLE defined (id INTEGER)"},
		"drops a table":                              {SQL: "DROP TABLE IF EXISTS nothing"},
		"begins another transaction":                 {SQL: "BEGIN"}, // it fails
	},
	Without: map[string]string{
		"commits past the store":                         notPast,
		"rolls back past the store":                      notPast,
		"commits and begins anew past the store":         notPast,
		"rolls back and begins anew past the store":      notPast,
		"drops a table past the store":                   notPast,
		"changes a setting for the transaction":          "a PRAGMA is for the connection",
		"takes another role for the transaction":         noRoles,
		"takes another role for the session":             noRoles,
		"takes another user for the session":             noRoles,
		"looks for names elsewhere in the transaction":   noPath,
		"looks for names elsewhere in the session":       noPath,
		"drops a table under a setting for that":         "a PRAGMA is for the connection",
		"locks a table":                                  "SQLite locks the whole database",
		"has each statement committed":                   "no setting of SQLite does that",
		"changes the isolation level of the transaction": "all transactions are serializable",
	},
}

func TestProducerContract(t *testing.T) { contract.Producer(t) }
func TestConsumerContract(t *testing.T) { contract.Consumer(t) }
func TestEffectContract(t *testing.T)   { contract.Effects(t) }
func TestRequestContract(t *testing.T)  { contract.Requests(t) }
func TestMisuseContract(t *testing.T)   { contract.Misuse(t) }

func TestEventThatCannotBeReadKeepsNoOtherFromBeingRead(t *testing.T) {
	contract.Unreadable(t, map[string]string{
		`headers = '{"a": 1}'`:                "headers are not a JSON object of strings",
		`headers = 'a: number'`:               "headers are not a JSON object of strings",
		`occurred_at = '2026-01-31 12:00:00'`: "occurred_at is no integer", // SQLite stores any value
		`created_at = 'now'`:                  "the stamp is no integer",
		`version = 1.5`:                       "version is no integer",
		`dispatch_id = 'üüüüüüüüüüüüüüüü'`:    "dispatch_id has not 16 bytes",
		`digest = 'üüüüüüüüüüüüüüüü'`:         "digest has not 16 bytes",
	})
}
