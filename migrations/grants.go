package migrations

import (
	_ "embed" // the file of grants
	"errors"
	"fmt"
	"slices"
	"strings"
)

//go:embed grants/postgres.sql
var postgresGrants string

// Roles names the roles of a PostgreSQL database that get the privileges of the parts of this
// library. Privileges of a part without a name are not granted. Several parts may share a role. A
// name has at most 63 bytes and may hold any characters except NUL.
type Roles struct {
	// Producer writes events. Defaults to none.
	Producer string
	// Relay publishes events. Defaults to none.
	Relay string
	// Consumer handles messages. Defaults to none.
	Consumer string
	// Requests answers HTTP requests with idempotency keys. Defaults to none.
	Requests string
	// Janitor removes rows past their retention. Defaults to none.
	Janitor string
	// Archiver removes rows past their retention and reads their events, for a janitor that archives.
	// Defaults to none.
	Archiver string
	// Operator redrives and discards parked events and messages. Defaults to none.
	Operator string
	// Monitor reads counts and ages. Defaults to none.
	Monitor string
}

const (
	// roleMark begins the first line of a role's section.
	roleMark = "-- role: "
	// rolePrefix begins the names of roles in the file.
	rolePrefix = "boxpair_"
)

// parts returns the roles by their names in the file of grants.
func (r Roles) parts() map[string]string {
	return map[string]string{
		"producer": r.Producer, "relay": r.Relay, "consumer": r.Consumer,
		"requests": r.Requests, "janitor": r.Janitor, "archiver": r.Archiver, "operator": r.Operator, "monitor": r.Monitor,
	}
}

// check refuses names that no role may have.
func (r Roles) check() error {
	var errs []error
	for part, role := range r.parts() {
		if err := check(part, role, maxIdentifier); err != nil {
			errs = append(errs, err)
		}
		if strings.HasPrefix(role, "pg_") || role == "public" || role == "none" {
			errs = append(errs, fmt.Errorf("%s: %q is one of the database's own roles", part, role))
		}
		if strings.Contains(role, "$boxpair$") {
			errs = append(errs, fmt.Errorf("%s: %q holds $boxpair$", part, role))
		}
	}
	return errors.Join(errs...)
}

// PostgresGrants returns the statements that give existing roles the least privileges for the library
// on the tables of names. The owner of the tables runs the statements after every migration; a second
// run has no effect. For other tools, grants/postgres.sql holds the statements. An error names the
// role whose name is invalid.
func PostgresGrants(names Names, roles Roles) (string, error) {
	sections := strings.Split(postgresGrants, roleMark)
	if err := roles.check(); err != nil {
		return "", fmt.Errorf("grants: %w", err)
	}
	quoted := make(map[string]string)
	for part, role := range roles.parts() {
		quoted[rolePrefix+part] = role
	}
	given := sections[:1]
	for _, section := range sections[1:] {
		part, _, _ := strings.Cut(section, "\n")
		if roles.parts()[part] != "" {
			given = append(given, section)
		}
	}
	return rewrite(strings.Join(given, roleMark), func(name string) string {
		if role, ok := quoted[name]; ok {
			return role
		}
		return names.postgres(name)
	}), nil
}

// PostgresRoles returns the statements that create missing roles, as groups: the roles cannot log in,
// own no objects, and inherit no privileges. An account becomes a member with GRANT role TO account.
// An administrator with CREATEROLE runs the statements before the statements of [PostgresGrants]; a
// second run, also a concurrent run, has no effect. Existing roles stay unchanged. An error names the
// role whose name is invalid.
func PostgresRoles(roles Roles) (string, error) {
	if err := roles.check(); err != nil {
		return "", fmt.Errorf("roles: %w", err)
	}
	var names []string
	for _, name := range roles.parts() {
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range slices.Compact(names) {
		fmt.Fprintf(&b, createRole, Quote(name))
	}
	return b.String(), nil
}

// createRole creates a role. A role that another transaction creates at the same time shows as a
// violation of the catalog's unique index.
const createRole = `DO $boxpair$ BEGIN
    CREATE ROLE %s NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; -- it exists
END $boxpair$;
`
