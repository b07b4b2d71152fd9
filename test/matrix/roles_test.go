package matrix

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
)

// The cells of the matrix also pass under the roles of least privileges.
func TestServicesWorkUnderRolesThatOwnNothing(t *testing.T) {
	t.Parallel()
	cell(t, string(fault.BeforeCommit), calm, system.Config{Archive: true}, func(t *testing.T, r *rig) {
		r.chain("", "", func(c *child.Config) { c.Pause = 10 * time.Millisecond })
		r.start(child.Janitor, "")
		r.users(r.OutboxPool(), r.OutboxDB, child.Janitor, child.Producer, child.Relay)
		r.users(r.InboxPool(), r.InboxDB, child.Consumer)
		for _, pool := range []*pgxpool.Pool{r.OutboxPool(), r.InboxPool()} {
			n, err := system.Number(r.ctx, pool, `SELECT count(*) FROM pg_roles u WHERE u.rolname = ANY ($1) AND (
				u.rolsuper OR u.rolcreatedb OR u.rolcreaterole OR u.rolbypassrls
				OR EXISTS (SELECT FROM pg_class c WHERE c.relowner = u.oid) OR has_schema_privilege(u.oid, 'boxpair', 'CREATE'))`,
				child.Logins())
			ok(t, err)
			if n > 0 {
				t.Errorf("%d logins have more than they need", n)
			}
		}
		r.Injected(1)
		r.finish()
	})
}

// users waits until the sessions of a database belong to roles, besides the superuser's sessions.
func (r *rig) users(pool *pgxpool.Pool, database string, roles ...child.Role) {
	r.t.Helper()
	var want []string
	for _, role := range roles {
		want = append(want, role.Login())
	}
	r.eventually("sessions of the roles", func() (bool, error) {
		rows, err := pool.Query(r.ctx, `SELECT DISTINCT usename::text FROM pg_stat_activity
			WHERE datname = $1 AND usename <> current_user ORDER BY 1`, database)
		if err != nil {
			return false, err
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		return slices.Equal(got, want), err
	})
}
