package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/migrations"
)

// relations are the tables of the library in PostgreSQL. A test compares them with the migrations.
var relations = []string{
	"outbox_events", "outbox_queue", "outbox_deferred", "outbox_parked", "outbox_attempts", "outbox_receipts", "outbox_shards",
	"outbox_relays", "outbox_routes", "inbox", "inbox_consumers", "inbox_forgotten", "inbox_handlers", "inbox_parked", "inbox_attempts", "inbox_history",
	"inbox_effects", "inbox_requests", "pauses", "rates",
}

// ours is the part FROM of a statement about the tables of the library, c of pg_class; $1 are their
// names in SQL.
const ours = ` FROM unnest($1::text[]) AS n (name) JOIN pg_class c ON c.oid = to_regclass(n.name) `

// relationNames returns the names of the tables in SQL.
func (t *tables) relationNames() []string {
	list := make([]string, len(relations))
	for i, name := range relations {
		list[i] = t.names.Table(name)
	}
	return list
}

// postgresTables does the checks of tables and sessions that only PostgreSQL has. It returns false
// if there are no tables, or if they cannot be read.
func (r *run) postgresTables(ctx context.Context, t *tables) bool {
	var exists bool
	err := t.Pool.QueryRow(ctx, `
		SELECT to_regclass($1::text) IS NOT NULL,
			coalesce(has_table_privilege(to_regclass($2::text)::oid, 'SELECT'), false),
			coalesce(has_sequence_privilege(pg_get_serial_sequence((SELECT $1::text WHERE to_regclass($1::text) IS NOT NULL), 'id')::regclass::oid, 'SELECT'), false)`,
		t.Table(), t.names.Table(migrations.HistoryTable)).Scan(&exists, &t.schema, &t.numbers)
	if err != nil {
		r.failed(Reach, t.Name, err)
		return false
	}
	if !exists {
		r.add(Migrations, Stalls, t.Name, "there is no table "+t.Table(), migrate+", or correct schema and prefix")
		return false
	}
	r.storage(ctx, t)
	r.indexes(ctx, t)
	r.settingsOfRoles(ctx, t)
	r.sessions(ctx, t)
	r.prepared(ctx, t)
	r.sessionRoles(ctx, t)
	r.publicRights(ctx, t)
	r.grants(ctx, t)
	return true
}

// relation is a table as described in the catalog.
type relation struct {
	name              string
	unlogged, disable bool
	dead, live        int64
	vacuumed          *time.Time
}

// storage looks at how the tables are stored and vacuumed.
func (r *run) storage(ctx context.Context, t *tables) {
	list, err := query(ctx, t, func(row scanner, l *relation) error {
		return row.Scan(&l.name, &l.unlogged, &l.disable, &l.dead, &l.live, &l.vacuumed)
	}, `SELECT n.name, c.relpersistence = 'u',
			EXISTS (SELECT FROM pg_options_to_table(c.reloptions) WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean),
			coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0), greatest(s.last_autovacuum, s.last_vacuum)`+ours+`
		LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid`, t.relationNames())
	if err != nil {
		r.failed(Autovacuum, t.Name, err)
	}
	for i := range list {
		l := &list[i]
		if l.unlogged {
			r.add(Unlogged, Loses, t.Name, "the table "+l.name+" is unlogged, and empty after a crash", "ALTER TABLE "+l.name+" SET LOGGED")
		}
		many := l.dead > int64(r.cfg.DeadRows) && l.dead > l.live/4
		if l.disable {
			r.add(Autovacuum, unvacuumed(many), t.Name, "autovacuum is off for the table "+l.name, "ALTER TABLE "+l.name+" RESET (autovacuum_enabled)")
		}
		if many {
			t.server.bloated = true
			when := "never"
			if l.vacuumed != nil {
				when = "last at " + l.vacuumed.UTC().Format(time.DateTime) + " UTC"
			}
			r.add(DeadRows, Stalls, t.Name, fmt.Sprintf("%d deleted rows are left in the table %s, which was vacuumed %s: reads step over them", l.dead, l.name, when),
				"end what holds them (old-transaction, replication-slot, standby-feedback), then VACUUM "+l.name)
		}
	}
}

func (r *run) indexes(ctx context.Context, t *tables) {
	list, err := query(ctx, t, func(row scanner, name *string) error { return row.Scan(name) }, `
		SELECT i.indexrelid::regclass::text`+ours+`
		JOIN pg_index i ON i.indrelid = c.oid AND NOT i.indisvalid
		WHERE NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid)`, t.relationNames())
	if err != nil {
		r.failed(InvalidIndex, t.Name, err)
	}
	for _, name := range list {
		r.add(InvalidIndex, Stalls, t.Name, "the index "+name+" is invalid: writers maintain it, and no read uses it", "REINDEX INDEX CONCURRENTLY "+name+"; or boxpair migrate up, if a migration was interrupted")
	}
}

// roleSetting is a setting of a role, or of a database.
type roleSetting struct{ at, name, value string }

// settingsOfRoles judges settings of the database, and of roles that may use the tables.
func (r *run) settingsOfRoles(ctx context.Context, t *tables) {
	list, err := query(ctx, t, func(row scanner, s *roleSetting) error { return row.Scan(&s.at, &s.name, &s.value) }, `
		SELECT CASE WHEN r.oid IS NULL THEN 'DATABASE ' || quote_ident(current_database())
				WHEN s.setdatabase <> 0 THEN 'ROLE ' || quote_ident(r.rolname) || ' IN DATABASE ' || quote_ident(current_database())
				ELSE 'ROLE ' || quote_ident(r.rolname) END,
			split_part(v, '=', 1), substr(v, strpos(v, '=') + 1)
		FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS v LEFT JOIN pg_roles r ON r.oid = s.setrole
		WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
			AND (s.setrole = 0 AND s.setdatabase <> 0
				OR EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = $1 AND has_schema_privilege(r.oid, n.oid, 'USAGE') AND NOT r.rolsuper))
		ORDER BY 1, 2`, t.names.Schema())
	if err != nil {
		r.failed(Durability, t.Name, err)
	}
	for _, s := range list {
		r.setting(t.Name, s.at, s.name, s.value)
	}
}
