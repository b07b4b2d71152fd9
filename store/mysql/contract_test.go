package mysql_test

import (
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/boxpair/boxpair/internal/sqlstore/sqlstoretest"
)

var contract = sqlstoretest.Contract{
	Open: func(t *testing.T) (*sql.DB, sqlstoretest.Store) {
		db, _ := database(t)
		return db, newStore(t, db)
	},
	Table:        `CREATE TABLE effects (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(200) NOT NULL)`,
	ShardWriters: true,
	Past: func(t *testing.T, db *sql.DB, statements []string) string {
		name := fmt.Sprintf("past_%d", pasts.Add(1))
		text := strings.ReplaceAll(strings.Join(statements, "; "), "BEGIN", "START TRANSACTION")
		sqlstoretest.Run(t, db, "CREATE PROCEDURE "+name+"() BEGIN "+text+"; END")
		return "CALL " + name + "()"
	},
}

var pasts atomic.Int64

func TestProducerContract(t *testing.T) { contract.Producer(t) }
func TestConsumerContract(t *testing.T) { contract.Consumer(t) }
func TestEffectContract(t *testing.T)   { contract.Effects(t) }
func TestRequestContract(t *testing.T)  { contract.Requests(t) }

// TestMisuseContract leaves out what is the same here: a single message is a group of one.
func TestMisuseContract(t *testing.T) {
	contract.Misuse(t, "handler in a group", "handler after it was parked", "handler of what follows an effect elsewhere",
		"handler of an idempotent request", "handler of Transact")
}
