package child

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/boxpair/boxpair/migrations"
)

// Login returns the PostgreSQL user of a child with this single role. The user has the privileges
// that package migrations grants to that part of the library, and no others. A consumer also has
// the producer's privileges, since its handlers write events.
func (r Role) Login() string { return "boxpair_" + string(r) }

// serviceLogin is the user of a child with several roles on an outbox: a member of all their roles.
const serviceLogin = "boxpair_service"

// archiverLogin is the user of a janitor that archives, which reads payloads.
const archiverLogin = "boxpair_archiver"

// Logins returns the PostgreSQL users of all children.
func Logins() []string {
	return []string{Producer.Login(), Relay.Login(), Consumer.Login(), Janitor.Login(), archiverLogin, serviceLogin}
}

// CreateLogins returns the statements that create the users of children. A superuser runs each
// statement on its own, once per server.
func CreateLogins(password string) []string {
	var statements []string
	for _, name := range Logins() {
		statements = append(statements, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", name, password))
	}
	of := []string{Producer.Login(), Relay.Login(), Janitor.Login()}
	return append(statements, "GRANT "+strings.Join(of, ", ")+" TO "+serviceLogin)
}

// Grants returns the statements by which the owner of the tables grants the roles their privileges:
// the library's grants as shipped, and [ServiceGrants].
func Grants() string {
	names, err := migrations.PostgresNames("", "")
	if err != nil {
		panic(err) // the defaults are valid names
	}
	var all strings.Builder
	for _, roles := range []migrations.Roles{
		{Producer: Producer.Login(), Relay: Relay.Login(), Consumer: Consumer.Login(), Janitor: Janitor.Login(), Archiver: archiverLogin},
		{Producer: Consumer.Login()},
	} {
		statements, err := migrations.PostgresGrants(names, roles)
		if err != nil {
			panic(err) // the logins are valid names
		}
		all.WriteString(statements)
	}
	return all.String() + ServiceGrants()
}

// ServiceGrants returns the statements by which the owner of the service's own tables grants the
// roles their privileges.
func ServiceGrants() string {
	return `
GRANT SELECT, INSERT, UPDATE ON aggregates, orders TO ` + Producer.Login() + `;
GRANT SELECT ON brake TO ` + Producer.Login() + `;
GRANT INSERT ON effects TO ` + Consumer.Login() + `;
GRANT SELECT, INSERT, UPDATE ON totals TO ` + Consumer.Login()
}

// outboxLogin returns the user of a child with some roles on the outbox.
func (c *Config) outboxLogin() string {
	var mine []Role
	for _, r := range []Role{Producer, Relay, Janitor} {
		if c.has(r) {
			mine = append(mine, r)
		}
	}
	if len(mine) == 1 && c.Archive != "" {
		return archiverLogin
	}
	if len(mine) == 1 {
		return mine[0].Login()
	}
	return serviceLogin
}

// loggedIn returns the address of a database for another user with the same password.
func loggedIn(address, user string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	password, _ := u.User.Password()
	u.User = url.UserPassword(user, password)
	return u.String(), nil
}
