package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/migrations"
)

// sessionRoles looks at the roles that are connected to the database.
func (r *run) sessionRoles(ctx context.Context, t *tables) {
	type role struct {
		name         string
		super, owner bool
	}
	list, err := query(ctx, t, func(row scanner, l *role) error { return row.Scan(&l.name, &l.super, &l.owner) }, `
		SELECT DISTINCT l.rolname, l.rolsuper, pg_has_role(l.oid, c.relowner, 'USAGE')
		FROM pg_stat_activity a JOIN pg_roles l ON l.oid = a.usesysid JOIN pg_class c ON c.oid = to_regclass($1::text)
		WHERE a.datname = current_database() ORDER BY 1`, t.Table())
	if err != nil {
		r.failed(RoleWide, t.Name, err)
	}
	for _, l := range list {
		subject, what := t.Name, "is connected and owns the tables: it may drop them, and forge events"
		switch {
		case l.super:
			subject, what = t.server.name, "is connected and a superuser: a fault of its service may change anything on the server" // once for each server
		case !l.owner:
			continue
		}
		r.add(RoleWide, Advice, subject, "the role "+l.name+" "+what, "connect with a role of the grants in migrations/grants/postgres.sql; the owner only migrates")
	}
}

// publicRights looks for rights of PUBLIC.
func (r *run) publicRights(ctx context.Context, t *tables) {
	list, err := query(ctx, t, func(row scanner, what *string) error { return row.Scan(what) }, `
		SELECT 'CREATE ON SCHEMA ' || quote_ident(n.nspname) FROM pg_namespace n
		WHERE n.nspname = $2 AND has_schema_privilege('public', n.oid, 'CREATE')
		UNION ALL
		SELECT DISTINCT a.privilege_type || ' ON ' || n.name`+ours+`
		CROSS JOIN LATERAL (
			SELECT x.grantee, x.privilege_type FROM aclexplode(c.relacl) x
			UNION ALL
			SELECT x.grantee, x.privilege_type FROM pg_attribute t CROSS JOIN aclexplode(t.attacl) x WHERE t.attrelid = c.oid AND NOT t.attisdropped
		) a WHERE a.grantee = 0
		ORDER BY 1`, t.relationNames(), t.names.Schema())
	if err != nil {
		r.failed(RoleWide, t.Name, err)
	}
	for _, what := range list {
		r.add(RoleWide, Advice, t.Name, "every role of the database has "+what, "REVOKE "+what+" FROM PUBLIC")
	}
}

// privilege is one right that a part of the library needs. column is "" for the whole object.
type privilege struct{ kind, object, column, right string }

func (p privilege) String() string {
	what := p.right
	if p.column != "" {
		what += " (" + p.column + ")"
	}
	return what + " on " + p.object
}

var (
	grantStatement  = regexp.MustCompile(`(?s)GRANT ([^;]+?)\s+ON (?:(SCHEMA|SEQUENCE|FUNCTION) )?([^;]+?)\s+TO "`)
	grantedRight    = regexp.MustCompile(`(SELECT|INSERT|UPDATE|DELETE|USAGE|EXECUTE)\s*(?:\(([^)]*)\))?`)
	grantedObject   = regexp.MustCompile(`"boxpair"(?:\."(\w+)")?`)
	commentOfGrants = regexp.MustCompile(`--[^\n]*`)
)

// privileges returns the rights of a part by migrations.PostgresGrants.
func privileges(part migrations.Roles) ([]privilege, error) {
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		return nil, err
	}
	text, err := migrations.PostgresGrants(names, part)
	if err != nil {
		return nil, err
	}
	var list []privilege
	for _, grant := range grantStatement.FindAllStringSubmatch(commentOfGrants.ReplaceAllString(text, ""), -1) {
		kind := strings.ToLower(grant[2])
		for _, object := range grantedObject.FindAllStringSubmatch(grant[3], -1) {
			for _, right := range grantedRight.FindAllStringSubmatch(grant[1], -1) {
				for column := range strings.SplitSeq(right[2], ",") {
					list = append(list, privilege{kind: kind, object: object[1], column: strings.TrimSpace(column), right: right[1]})
				}
			}
		}
	}
	return list, nil
}

// part is a part of the library, with the right that marks its roles.
type part struct {
	name  string
	roles migrations.Roles
	mark  privilege
}

const anyone = "anyone" // stands for the role in the text of the grants

var parts = []part{
	{"producer", migrations.Roles{Producer: anyone}, privilege{"", "outbox_events", "dispatch_id", "INSERT"}},
	{"relay", migrations.Roles{Relay: anyone}, privilege{"", "outbox_receipts", "event_ids", "INSERT"}},
	{"consumer", migrations.Roles{Consumer: anyone}, privilege{"", "inbox", "dispatch_id", "INSERT"}},
	{"requests", migrations.Roles{Requests: anyone}, privilege{"", "inbox_requests", "key", "INSERT"}},
	{"janitor", migrations.Roles{Janitor: anyone}, privilege{"", "outbox_receipts", "", "DELETE"}},
	{"operator", migrations.Roles{Operator: anyone}, privilege{"", "outbox_queue", "round", "INSERT"}},
	{"monitor", migrations.Roles{Monitor: anyone}, privilege{"", "inbox_forgotten", "", "SELECT"}},
}

// isOf tells whether a role with the held rights has the part. Other parts also have the rights of a
// monitor, so a role with another part is no monitor.
func (p *part) isOf(held []privilege) bool {
	if p.name == "monitor" {
		for i := range parts {
			if &parts[i] != p && slices.Contains(held, parts[i].mark) {
				return false
			}
		}
	}
	return slices.Contains(held, p.mark)
}

// held reads the rights of list that a role has, for each role with a grant on the library except
// superusers and owners. A right on a missing object counts as held.
func (t *tables) held(ctx context.Context, list []privilege) (map[string][]privilege, error) {
	kinds, objects, columns, rights := make([]string, len(list)), make([]string, len(list)), make([]string, len(list)), make([]string, len(list))
	for i, p := range list {
		kinds[i], columns[i], rights[i] = p.kind, p.column, p.right
		if objects[i] = t.names.Table(p.object); p.kind == "function" {
			objects[i] = t.names.Prefix() + p.object
		}
	}
	type row struct {
		role string
		at   int
	}
	rows, err := query(ctx, t, func(r scanner, v *row) error { return r.Scan(&v.role, &v.at) }, `
		WITH grantees AS (
			SELECT DISTINCT l.oid, l.rolname`+ours+`
			CROSS JOIN LATERAL (
				SELECT x.grantee FROM aclexplode(c.relacl) x
				UNION ALL
				SELECT x.grantee FROM pg_attribute a CROSS JOIN aclexplode(a.attacl) x WHERE a.attrelid = c.oid AND NOT a.attisdropped
			) g JOIN pg_roles l ON l.oid = g.grantee WHERE NOT l.rolsuper AND NOT pg_has_role(l.oid, c.relowner, 'USAGE')
		)
		SELECT l.rolname, w.at FROM grantees l
		CROSS JOIN unnest($2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS w (kind, object, field, wanted, at)
		LEFT JOIN pg_attribute a ON w.field <> '' AND a.attrelid = to_regclass(w.object) AND a.attname = w.field
		WHERE coalesce(CASE
			WHEN w.kind = 'schema' THEN (SELECT has_schema_privilege(l.oid, n.oid, w.wanted) FROM pg_namespace n WHERE n.nspname = $6)
			WHEN w.kind = 'sequence' THEN has_sequence_privilege(l.oid, to_regclass(w.object)::oid, w.wanted)
			WHEN w.kind = 'function' THEN (
				SELECT bool_and(has_function_privilege(l.oid, p.oid, w.wanted))
				FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $6 AND p.proname = w.object)
			WHEN w.field <> '' THEN has_column_privilege(l.oid, a.attrelid, a.attnum, w.wanted)
			ELSE has_table_privilege(l.oid, to_regclass(w.object)::oid, w.wanted) END, true)`,
		t.relationNames(), kinds, objects, columns, rights, t.names.Schema())
	all := make(map[string][]privilege)
	for _, v := range rows {
		all[v.role] = append(all[v.role], list[v.at-1])
	}
	return all, err
}

// grants looks for roles that lack rights of their part of the library, as after a migration without
// its grants.
func (r *run) grants(ctx context.Context, t *tables) {
	needed := make([][]privilege, len(parts))
	var all []privilege
	for i := range parts {
		var err error
		if needed[i], err = privileges(parts[i].roles); err != nil {
			r.failed(RoleNarrow, t.Name, err)
			return
		}
		all = append(append(all, needed[i]...), parts[i].mark)
	}
	slices.SortFunc(all, func(a, b privilege) int { return strings.Compare(fmt.Sprint(a.kind, a), fmt.Sprint(b.kind, b)) })
	held, err := t.held(ctx, slices.Compact(all))
	if err != nil {
		r.failed(RoleNarrow, t.Name, err)
		return
	}
	for _, role := range sortedKeys(held) {
		for i := range parts {
			lacks := lacking(held[role], needed[i])
			if len(lacks) == 0 || !parts[i].isOf(held[role]) {
				continue
			}
			shown := lacks[:min(5, len(lacks))]
			r.add(RoleNarrow, Stalls, t.Name, fmt.Sprintf("the role %s works as %s and lacks %d rights: %s", role, parts[i].name, len(lacks), strings.Join(shown, ", ")),
				"run the grants again as the owner: migrations/grants/postgres.sql with the role "+pgx.Identifier{role}.Sanitize()+" as "+parts[i].name)
		}
	}
}

// lacking returns the needed rights that are not held, in words.
func lacking(held, needed []privilege) []string {
	var list []string
	for _, p := range needed {
		if !slices.Contains(held, p) {
			list = append(list, p.String())
		}
	}
	return list
}
