package main

import (
	"fmt"
	"slices"
	"strings"
)

// release is a release of Debian or Ubuntu, with its servers.
type release struct {
	name   string // its code name
	title  string
	ubuntu bool
	sql    string // the package of MariaDB or MySQL; MySQL's full package would start the server during the installation
	// from are older releases whose PostgreSQL is installed beside the release's own, and postgres
	// names the packages.
	from, postgres []string
	broker         string // the older release whose RabbitMQ is upgraded in place to this release's
}

// releases are ordered from the oldest to the newest. Together they have PostgreSQL 14 to 18,
// RabbitMQ 3.9 to 4.x, MariaDB 10.11 and 11.8, MySQL 8.0, 8.4 and 9.
var releases = []release{
	{name: "jammy", title: "Ubuntu 22.04", ubuntu: true, sql: "mysql-server-core-8.0"},
	{name: "bookworm", title: "Debian 12", sql: "mariadb-server"},
	{name: "noble", title: "Ubuntu 24.04", ubuntu: true, sql: "mariadb-server"},
	{name: "trixie", title: "Debian 13", sql: "mariadb-server"},
	{name: "resolute", title: "Ubuntu 26.04", ubuntu: true, sql: "mysql-server-core-8.4"},
	{
		name: "sid", title: "Debian, development", sql: "mysql-server-core",
		from: []string{"bookworm", "trixie"}, postgres: []string{"15", "17"}, broker: "trixie",
	},
}

// choose returns the releases with the given names, or all releases without names.
func choose(names []string) ([]release, error) {
	if len(names) == 0 {
		return releases, nil
	}
	var chosen []release
	for _, name := range names {
		i := slices.IndexFunc(releases, func(r release) bool { return r.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no release %q", name)
		}
		chosen = append(chosen, releases[i])
	}
	return chosen, nil
}

// packages are the packages that a release needs beyond its smallest set.
func (r release) packages() []string {
	names := []string{"postgresql", "rabbitmq-server", r.sql, "pgbouncer", "procps"}
	for _, version := range r.postgres {
		names = append(names, "postgresql-"+version)
	}
	return names
}

// sources are lines of sources.list.
func (r release) sources() []string {
	if r.ubuntu {
		const archive = "deb http://archive.ubuntu.com/ubuntu "
		return []string{archive + r.name + " main universe", archive + r.name + "-updates main universe"}
	}
	var lines []string
	for _, name := range append([]string{r.name}, r.from...) {
		lines = append(lines, "deb http://deb.debian.org/debian "+name+" main")
	}
	return lines
}

// image returns the release's image in Docker's registry.
func (r release) image() string {
	if r.ubuntu {
		return "ubuntu:" + r.name
	}
	return "debian:" + r.name
}

// versions are the versions of the servers in a release.
type versions struct{ postgres, rabbitmq, sql string }

// parseVersions parses lines with a package's name and its version.
func parseVersions(text string) versions {
	var v versions
	for line := range strings.Lines(text) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		if version = upstream(version); version == "" {
			continue
		}
		switch {
		case name == "rabbitmq-server":
			v.rabbitmq = version
		case name == "mariadb-server":
			v.sql = "MariaDB " + version
		case strings.HasPrefix(name, "mysql-server-core"):
			v.sql = "MySQL " + version
		case strings.HasPrefix(name, "postgresql-") && strings.Trim(name, "0123456789") == "postgresql-":
			v.postgres = version
		}
	}
	return v
}

// upstream removes the distribution's additions from a package's version: "1:11.8.9+ds-0+deb13u1"
// becomes 11.8.9.
func upstream(version string) string {
	if _, rest, found := strings.Cut(version, ":"); found {
		version = rest
	}
	if end := strings.IndexAny(version, "-+~"); end >= 0 {
		version = version[:end]
	}
	return version
}
