package sqlite_test

import (
	"database/sql"
	"testing"

	"github.com/boxpair/boxpair/internal/sqlstore/sqlstoretest"
)

var contract = sqlstoretest.Contract{
	Open: func(t *testing.T) (*sql.DB, sqlstoretest.Store) {
		db, _ := database(t)
		return db, newStore(t, db)
	},
	Table:     `CREATE TABLE effects (id INTEGER PRIMARY KEY, name TEXT NOT NULL)`,
	OneWriter: true, KeepsCommits: true,
}

func TestProducerContract(t *testing.T) { contract.Producer(t) }
func TestConsumerContract(t *testing.T) { contract.Consumer(t) }
func TestEffectContract(t *testing.T)   { contract.Effects(t) }
func TestRequestContract(t *testing.T)  { contract.Requests(t) }
func TestMisuseContract(t *testing.T)   { contract.Misuse(t) }
