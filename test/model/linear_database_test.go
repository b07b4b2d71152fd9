package modeltest

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
)

func TestConcurrentConsumersAgreeOnSQLite(t *testing.T) {
	t.Parallel()
	content := template(t)
	testConsumers(t, func(t *testing.T) shared[*sql.Tx] {
		path := filepath.Join(t.TempDir(), "shared.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		db, _ := openFile(t, path)
		return shared[*sql.Tx]{
			open: func() inbox.Store[*sql.Tx] {
				_, store := openFile(t, path)
				return store
			},
			effect: func(ctx context.Context, tx *sql.Tx, id uuid.UUID) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES (?)`, id.String())
				return err
			},
			effects: func(id uuid.UUID) (n int, err error) {
				err = db.QueryRowContext(t.Context(), `SELECT count(*) FROM effects WHERE id = ?`, id.String()).Scan(&n)
				return n, err
			},
		}
	})
}

func TestConcurrentConsumersAgreeOnPostgreSQL(t *testing.T) {
	t.Parallel()
	testConsumers(t, func(t *testing.T) shared[pgx.Tx] {
		url := testenv.Postgres(t)
		pool := newPool(t, url)
		_, err := postgres.Migrate(t.Context(), pool, postgres.Config{})
		if err == nil {
			_, err = pool.Exec(t.Context(), createEffects)
		}
		if err != nil {
			t.Fatal(err)
		}
		return shared[pgx.Tx]{
			open: func() inbox.Store[pgx.Tx] {
				store, err := postgres.New(newPool(t, url), postgres.Config{})
				if err != nil {
					t.Fatal(err)
				}
				return store
			},
			effect: func(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
				_, err := tx.Exec(ctx, `INSERT INTO effects (id) VALUES ($1)`, id.String())
				return err
			},
			effects: func(id uuid.UUID) (n int, err error) {
				err = pool.QueryRow(t.Context(), `SELECT count(*) FROM effects WHERE id = $1`, id.String()).Scan(&n)
				return n, err
			},
		}
	})
}

// newPool returns a small pool of its own, as of another process.
func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
