package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/postgres"
)

// shelf keeps the schemas of tests that have ended, emptied, for those that begin. To make the
// tables of a store takes longer than most tests of its contract.
type shelf struct {
	pool         *pgxpool.Pool
	name, prefix string // what a schema's name begins with, and the tables'

	mu   sync.Mutex
	free []string
}

// config names tables that no other test uses before this one has ended. They may have to be made.
func (s *shelf) config(t *testing.T) postgres.Config {
	t.Helper()
	cfg := postgres.Config{Schema: s.take(), Prefix: s.prefix}
	if cfg.Schema == "" {
		cfg.Schema = s.name + testenv.Name(t)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // what it left is to be looked at
		}
		if err := s.empty(cfg); err != nil {
			t.Errorf("empty the tables of the test: %v", err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free = append(s.free, cfg.Schema)
	})
	return cfg
}

func (s *shelf) take() (schema string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		schema, s.free = s.free[n-1], s.free[:n-1]
	}
	return schema
}

// emptied puts the tables of a schema back to what they were after the last migration. Replica: no
// trigger fires.
const emptied = `
DO $do$
DECLARE
    r record;
BEGIN
    PERFORM set_config('session_replication_role', 'replica', true), set_config('lock_timeout', '10s', true);
    FOR r IN SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %[1]s AND c.relkind IN ('r', 'S') AND c.relname <> %[2]s LOOP
        IF r.relkind = 'S' THEN
            PERFORM setval(r.oid, 1, false);
        ELSE
            EXECUTE 'DELETE FROM ' || r.oid::regclass;
        END IF;
    END LOOP;
    INSERT INTO %[3]s (shard) SELECT generate_series(0, 63);
END
$do$`

func (s *shelf) empty(cfg postgres.Config) error {
	names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = s.pool.Exec(ctx, fmt.Sprintf(emptied, literal(names.Schema()), literal(names.Prefix()+migrations.HistoryTable), names.Table("outbox_shards")))
	return err
}
