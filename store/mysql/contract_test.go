package mysql_test

import (
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/boxpair/boxpair/store/internal/sqlstore/sqlstoretest"
	"github.com/boxpair/boxpair/store/storetest"
)

// commits is part of the error of a statement for which MySQL commits.
const commits = "does not end the transaction"

var contract = sqlstoretest.Contract{
	Open: func(t *testing.T) (*sql.DB, sqlstoretest.Store) {
		db, _ := database(t)
		return db, newStore(t, db)
	},
	Table:        `CREATE TABLE IF NOT EXISTS effects (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(200) NOT NULL)`,
	ShardWriters: true,
	User:         "CURRENT_USER()",
	Filled:       []string{"migrations", "outbox_shards", "_keys"},
	Past: func(t *testing.T, db *sql.DB, statements []string) string {
		name := fmt.Sprintf("past_%d", pasts.Add(1))
		text := strings.ReplaceAll(strings.Join(statements, "; "), "BEGIN", "START TRANSACTION")
		sqlstoretest.Run(t, db, "CREATE PROCEDURE "+name+"() BEGIN "+text+"; END")
		return "CALL " + name + "()"
	},
	State: []string{
		"SELECT DATABASE(), CURRENT_ROLE()",
		"SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation', 'sort_buffer_size')",
	},
	Changes: map[string]storetest.MisuseChange{
		"changes a setting for the session":              {SQL: "SET SESSION sort_buffer_size = 300000"},
		"takes another role for the session":             {SQL: "SET ROLE NONE"},
		"looks for names elsewhere in the session":       {SQL: "USE information_schema", Says: "USE"},
		"changes the isolation level of the transaction": {SQL: "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"}, // it fails
		"changes the isolation level of the session":     {SQL: "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"},
		"defines a table":                                {SQL: "CREATE TABLE IF NOT EXISTS defined (id INT)", Says: commits},
		"drops a table":                                  {SQL: "DROP TABLE IF EXISTS nothing", Says: commits},
		"drops a table under a setting for that":         {SQL: "/*M! SET STATEMENT max_statement_time = 10 FOR */ DROP TABLE IF EXISTS nothing", Says: "may have been ended", Past: true},
		"locks a table":                                  {SQL: "LOCK TABLES effects WRITE", Says: commits},
		"begins another transaction":                     {SQL: "START TRANSACTION", Says: commits},
		"has each statement committed":                   {SQL: "SET autocommit = 1", Says: commits},
	},
	Without: map[string]string{
		"changes a setting for the transaction":        "settings are of the session",
		"takes another role for the transaction":       "roles are of the session",
		"takes another user for the session":           "the user is that of the login",
		"looks for names elsewhere in the transaction": "the database that names are looked for in is the session's",
	},
}

var pasts atomic.Int64

func TestProducerContract(t *testing.T) { contract.Producer(t) }
func TestConsumerContract(t *testing.T) { contract.Consumer(t) }
func TestEffectContract(t *testing.T)   { contract.Effects(t) }
func TestRequestContract(t *testing.T)  { contract.Requests(t) }

func TestMisuseContract(t *testing.T) { contract.Misuse(t) }

func TestEventThatCannotBeReadKeepsNoOtherFromBeingRead(t *testing.T) {
	contract.Unreadable(t, map[string]string{
		`headers = '{"a": 1}'`:  "headers are not a JSON object of strings",
		`headers = 'a: number'`: "headers are not a JSON object of strings",
	})
}
