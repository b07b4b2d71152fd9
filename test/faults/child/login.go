package child

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/boxpair/boxpair/migrations"
)

// Login is the user of PostgreSQL that a child with this role alone logs in as. It has the
// privileges that package migrations gives to that part of the library and no others; a consumer's
// has the producer's besides, since its handlers write events.
func (r Role) Login() string { return "boxpair_" + string(r) }

// serviceLogin is the user of a child that does several things with an outbox: a member of all
// their roles.
const serviceLogin = "boxpair_service"

// Logins are all users of PostgreSQL that children log in as.
func Logins() []string {
	return []string{Producer.Login(), Relay.Login(), Consumer.Login(), Janitor.Login(), serviceLogin}
}

// CreateLogins are the statements that create the users of children, each to be run on its
// own by a superuser, once for a server.
func CreateLogins(password string) []string {
	var statements []string
	for _, name := range Logins() {
		statements = append(statements, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", name, password))
	}
	of := []string{Producer.Login(), Relay.Login(), Janitor.Login()}
	return append(statements, "GRANT "+strings.Join(of, ", ")+" TO "+serviceLogin)
}

// Grants are the statements by which the owner of the tables gives the roles what they need
// of them: the library's as it ships them, and [ServiceGrants].
func Grants() string {
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		panic(err) // the defaults are names
	}
	var all strings.Builder
	for _, roles := range []migrations.Roles{
		{Producer: Producer.Login(), Relay: Relay.Login(), Consumer: Consumer.Login(), Janitor: Janitor.Login()},
		{Producer: Consumer.Login()},
	} {
		statements, err := migrations.PostgresGrants(names, roles)
		if err != nil {
			panic(err) // so are the logins
		}
		all.WriteString(statements)
	}
	return all.String() + ServiceGrants()
}

// ServiceGrants are the statements by which the owner of the service's own tables gives the roles
// what they need of them.
func ServiceGrants() string {
	return `
GRANT SELECT, INSERT, UPDATE ON aggregates, orders TO ` + Producer.Login() + `;
GRANT SELECT ON brake TO ` + Producer.Login() + `;
GRANT INSERT ON effects TO ` + Consumer.Login() + `;
GRANT SELECT, INSERT, UPDATE ON totals TO ` + Consumer.Login()
}

// outboxLogin is the user that a child with some roles works on the outbox as.
func (c *Config) outboxLogin() string {
	var mine []Role
	for _, r := range []Role{Producer, Relay, Janitor} {
		if c.has(r) {
			mine = append(mine, r)
		}
	}
	if len(mine) == 1 {
		return mine[0].Login()
	}
	return serviceLogin
}

// loggedIn is the address of a database for another user with the same password.
func loggedIn(address, user string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	password, _ := u.User.Password()
	u.User = url.UserPassword(user, password)
	return u.String(), nil
}
