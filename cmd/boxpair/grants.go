package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxpair/boxpair/migrations"
)

var grants = command{
	name: migrateName + " grants", group: setUp,
	summary: "print the SQL that creates roles of PostgreSQL and their grants",
	details: `Prints the statements that grant each named role the privileges of its part on the tables, and no others,
and connects to no database. Several parts may share a role. The owner of the tables runs the statements
after every migration; running them again changes nothing. --create precedes them with the statements
that create missing roles as groups, which an administrator runs: an account becomes a member with
GRANT role TO account.

    boxpair migrate grants --create --producer-role shop --relay-role shop_relay --archiver-role shop_relay`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		g := &granting{}
		s.on(&g.create, "create", "also print the statements that create the roles.")
		r := &g.roles
		for _, part := range []struct {
			to       *string
			name, of string
		}{
			{&r.Producer, "producer", "writes events"},
			{&r.Relay, "relay", "sends events: boxpair relay --janitor=false"},
			{&r.Consumer, "consumer", "handles messages"},
			{&r.Requests, "requests", "answers HTTP requests with idempotency keys"},
			{&r.Janitor, "janitor", "removes old events: boxpair janitor, and boxpair relay besides the relay's role"},
			{&r.Archiver, "archiver", "removes old events and reads them, for --archive"},
			{&r.Operator, "operator", "looks at and changes dead letters, deferred events, replays and pauses"},
			{&r.Monitor, "monitor", "reads counts and ages: boxpair status"},
		} {
			s.text(part.to, part.name+"-role", "NAME", "the role that "+part.of+". Defaults to none.")
		}
		g.places.define(s)
		return g.run
	},
}

// granting holds the settings of migrate grants.
type granting struct {
	places places
	create bool
	roles  migrations.Roles
}

func (g *granting) run(_ context.Context, p *process) (int, error) {
	if g.roles == (migrations.Roles{}) {
		return exitFailed, errors.New("--producer-role, --relay-role, …: want the name of at least one role")
	}
	names, err := migrations.PostgresNames(g.places.schema, g.places.prefix)
	if err != nil {
		return exitFailed, err
	}
	statements, err := migrations.PostgresGrants(names, g.roles)
	if err != nil {
		return exitFailed, err
	}
	if g.create {
		created, err := migrations.PostgresRoles(g.roles)
		if err != nil {
			return exitFailed, err
		}
		statements = created + statements
	}
	_, err = fmt.Fprint(p.stdout, statements)
	return exitOK, err
}
