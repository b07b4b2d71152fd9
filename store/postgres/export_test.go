package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/migrations"
)

// MigrateFurther is [Migrate] in a later version, which has more migrations.
func MigrateFurther(ctx context.Context, pool *pgxpool.Pool, cfg Config, later ...migrations.Migration) ([]migrations.Applied, error) {
	m, err := newMigrator(pool, cfg)
	if err != nil {
		return nil, err
	}
	for i := range later {
		later[i].Number = len(m.known) + 1
		m.known = append(m.known, later[i])
	}
	return m.run(ctx)
}
