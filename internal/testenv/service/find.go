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

// postgresDirs are the directories of PostgreSQL's server binaries besides PATH: Debian, Red Hat's
// PGDG packages, Homebrew on ARM and on Intel, a build from source.
var postgresDirs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/usr/local/pgsql/bin",
}

// rabbitDirs are the directories of RabbitMQ's own scripts. On Debian they are not the wrappers in
// /usr/sbin, which refuse users other than root and rabbitmq.
var rabbitDirs = []string{
	"/usr/lib/rabbitmq/bin",
	"/opt/homebrew/opt/rabbitmq/sbin",
	"/usr/local/opt/rabbitmq/sbin",
	"/opt/rabbitmq/sbin",
}

// PostgresBin returns the directory with initdb, postgres, pg_dump and psql of the newest installed
// version, or "" if no version is installed.
func PostgresBin() string { return findDir(postgresDirs, "initdb", "postgres") }

// RabbitMQBin returns the directory with rabbitmq-server and rabbitmqctl, or "" if RabbitMQ is not
// installed.
func RabbitMQBin() string { return findDir(rabbitDirs, "rabbitmq-server", "rabbitmqctl") }

// findDir returns the directory with all of names that has the highest version number in its path,
// or the directory on PATH.
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

// version returns the first number in path, or 0.
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
