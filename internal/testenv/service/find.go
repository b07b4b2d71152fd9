package service

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// postgresDirs are where PostgreSQL's server binaries live besides PATH:
// Debian, Red Hat's PGDG packages, Homebrew on ARM and on Intel, a build from
// source.
var postgresDirs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/usr/local/pgsql/bin",
}

// rabbitDirs are where RabbitMQ's own scripts live. On Debian these are not
// the wrappers in /usr/sbin, which refuse any user but root and rabbitmq.
var rabbitDirs = []string{
	"/usr/lib/rabbitmq/bin",
	"/opt/homebrew/opt/rabbitmq/sbin",
	"/usr/local/opt/rabbitmq/sbin",
	"/opt/rabbitmq/sbin",
}

// PostgresBin returns the directory that holds initdb, postgres, pg_dump and
// psql, of the newest version installed, or "" if there is none.
func PostgresBin() string { return findDir(postgresDirs, "initdb", "postgres") }

// RabbitMQBin returns the directory that holds rabbitmq-server and
// rabbitmqctl, or "" if there is none.
func RabbitMQBin() string { return findDir(rabbitDirs, "rabbitmq-server", "rabbitmqctl") }

// findDir returns the directory with the highest version number in its path
// among those that hold all of names, or the one on PATH.
func findDir(patterns []string, names ...string) string {
	var found []string
	for _, pattern := range patterns {
		matches, _ := filepath.Glob(pattern)
		found = append(found, slices.DeleteFunc(matches, func(dir string) bool { return !holds(dir, names) })...)
	}
	if len(found) > 0 {
		return slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(version(a), version(b)) })
	}
	if path, err := exec.LookPath(names[0]); err == nil && holds(filepath.Dir(path), names) {
		return filepath.Dir(path)
	}
	return ""
}

func holds(dir string, names []string) bool {
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// version returns the first number in path, 0 without one.
func version(path string) int {
	start := strings.IndexAny(path, "0123456789")
	if start < 0 {
		return 0
	}
	digits := path[start:]
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	n, _ := strconv.Atoi(digits)
	return n
}
