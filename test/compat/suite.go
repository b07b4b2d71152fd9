package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// suite is a package that runs on every release.
type suite struct {
	title, dir string
	args       []string
	main       bool // a program; tests otherwise
}

// chains are also run where databases move and brokers are upgraded.
var chains = suite{title: "chains", dir: "test/chain"}

var suites = []suite{
	{title: "store/postgres", dir: "store/postgres"},
	{title: "store/mysql", dir: "store/mysql"},
	{title: "transport/amqp", dir: "transport/amqp"},
	chains,
	{title: "example, with kills", dir: "examples/orders", main: true, args: []string{"-chaos", "-json", "-orders=2000"}},
}

func (s suite) binary() string { return strings.ReplaceAll(s.dir, "/", "-") }

// command returns a shell command that runs the suite's tests with names that match.
func (s suite) command(root, binaries, match string) string {
	return fmt.Sprintf("cd '%s' && exec '%s' -test.v -test.timeout=10m -test.run='%s'",
		filepath.Join(root, filepath.FromSlash(s.dir)), filepath.Join(binaries, s.binary()), match)
}

// build compiles the suites and the program that starts the servers, and returns their directory.
// The programs are linked statically, since older releases have an older libc.
func build(ctx context.Context, root string) (string, error) {
	dir := filepath.Join(root, "bin", "compat")
	builds := [][]string{{"build", "-buildvcs=false", "-o", filepath.Join(dir, "testenv"), "./internal/testenv/cmd/testenv"}}
	for _, s := range suites {
		args := []string{"test", "-c", "-vet=off"}
		if s.main {
			args = []string{"build", "-buildvcs=false"}
		}
		module, pkg := ".", s.dir
		if rest, in := strings.CutPrefix(s.dir, "test/"); in {
			module, pkg = "test", rest
		}
		builds = append(builds, append(append([]string{"-C", module}, args...), "-o", filepath.Join(dir, s.binary()), "./"+pkg))
	}
	for _, args := range builds {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return dir, nil
}

// script returns a shell script that runs the suites one after the other on shared servers, and
// keeps their output and exit status.
func script(binaries, root, logs string) string {
	var b strings.Builder
	b.WriteString("export DATABASE_URL=$TEST_DATABASE_URL AMQP_URL=$TEST_AMQP_URL\n")
	for _, s := range suites {
		args := strings.Join(append([]string{"-test.v", "-test.timeout=20m"}, s.args...), " ")
		if s.main {
			args = strings.Join(s.args, " ")
		}
		log := filepath.Join(logs, s.binary())
		fmt.Fprintf(&b, "cd '%s' && '%s' %s >'%s.log' 2>&1; echo $? >'%s.status'\n",
			filepath.Join(root, filepath.FromSlash(s.dir)), filepath.Join(binaries, s.binary()), args, log, log)
	}
	return b.String()
}

// try runs the suites on a release.
func try(ctx context.Context, places places, root, binaries string, r release) (row, error) {
	has, err := installed(ctx, places, root, r)
	if err != nil {
		return row{}, err
	}
	result := row{release: r, versions: has}
	logs := filepath.Join(binaries, "logs", r.name)
	if err := os.RemoveAll(logs); err != nil {
		return row{}, err
	}
	if err := os.MkdirAll(logs, 0o750); err != nil {
		return row{}, err
	}
	fmt.Printf("%s: PostgreSQL %s, RabbitMQ %s, %s\n", r.title, result.versions.postgres, result.versions.rabbitmq, result.versions.sql)
	cmd := places.command(ctx, r, root, filepath.Join(binaries, "testenv"), "--", "sh", "-c", script(binaries, root, logs))
	if out, err := interruptible(cmd).CombinedOutput(); err != nil {
		return row{}, fmt.Errorf("testenv: %w\n%s", err, out)
	}
	for _, s := range suites {
		log, status := filepath.Join(logs, s.binary()+".log"), filepath.Join(logs, s.binary()+".status")
		said, err := os.ReadFile(log)
		if err != nil {
			return row{}, err
		}
		ended, err := os.ReadFile(status)
		if err != nil {
			return row{}, err
		}
		result.failed = append(result.failed, failures(said, string(bytes.TrimSpace(ended)) == "0"))
	}
	result.moves, err = moves(ctx, places, root, binaries, r, result.versions.postgres)
	if err != nil {
		return result, err
	}
	upgraded, err := upgrade(ctx, places, root, binaries, r, result.versions.rabbitmq)
	result.moves = append(result.moves, upgraded...)
	return result, err
}

// interruptible makes the servers and the tests end in order when a run is interrupted.
func interruptible(cmd *exec.Cmd) *exec.Cmd {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	return cmd
}

// movers are the tests of test/chain that move a database from the tests' common server to another
// server.
const movers = "^(TestRestoredDatabaseLosesAndReordersNothing|TestDatabaseThatMovesByLogicalReplicationLosesAndReordersNothing)$"

// moves moves databases from each older PostgreSQL of a release to its newest.
func moves(ctx context.Context, places places, root, binaries string, r release, to string) ([]move, error) {
	var result []move
	for _, from := range r.postgres {
		cmd := places.command(ctx, r, root, filepath.Join(binaries, "testenv"),
			"-postgres", "/usr/lib/postgresql/"+from+"/bin", "--", "sh", "-c", chains.command(root, binaries, movers))
		out, failed := interruptible(cmd).CombinedOutput()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		log := filepath.Join(binaries, "logs", r.name, "moves-"+from+".log")
		if err := os.WriteFile(log, out, 0o600); err != nil {
			return nil, err
		}
		title := "PostgreSQL " + from + " to " + to + ", by dump and by logical replication"
		result = append(result, move{title, failures(out, failed == nil)})
	}
	return result, nil
}

// upgrade upgrades the broker of an older release in place. It runs among the older release's
// packages, and only the broker's programs come from the newer release, which needs folders.
func upgrade(ctx context.Context, places places, root, binaries string, r release, to string) ([]move, error) {
	f, able := places.(*folders)
	if r.broker == "" || !able {
		return nil, nil
	}
	older, err := choose([]string{r.broker})
	if err != nil {
		return nil, err
	}
	if err := f.make(ctx, older[0]); err != nil {
		return nil, err
	}
	from, err := installed(ctx, f, root, older[0])
	if err != nil {
		return nil, err
	}
	programs := filepath.Join(binaries, "newer-"+r.name)
	if err := f.scripts(r, programs, "/usr/lib/rabbitmq/bin", "rabbitmq-server", "rabbitmqctl"); err != nil {
		return nil, err
	}
	command := fmt.Sprintf("export TEST_RABBITMQ_NEWER='%s' && %s", programs, chains.command(root, binaries, "^TestBrokerThatIsUpgradedInPlaceLosesNothing$"))
	cmd := f.command(ctx, older[0], root, filepath.Join(binaries, "testenv"), "--", "sh", "-c", command)
	out, failed := interruptible(cmd).CombinedOutput()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	title := "RabbitMQ " + from.rabbitmq + " to " + to + ", in place"
	return []move{{title, failures(out, failed == nil)}}, os.WriteFile(filepath.Join(binaries, "logs", r.name, "upgrade.log"), out, 0o600)
}

// installed returns the versions of a release's servers.
func installed(ctx context.Context, places places, root string, r release) (versions, error) {
	out, err := places.command(ctx, r, root, "dpkg-query", "--show", "--showformat", `${Package} ${Version}\n`).Output()
	if err != nil {
		return versions{}, fmt.Errorf("dpkg-query: %w", err)
	}
	return parseVersions(string(out)), nil
}

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// failures returns the names of the tests that failed, none if all passed.
func failures(said []byte, passed bool) []string {
	if passed {
		return nil
	}
	var names []string
	for _, match := range failure.FindAllSubmatch(said, -1) {
		names = append(names, string(match[1]))
	}
	if len(names) == 0 {
		names = []string{"did not end as it should"}
	}
	return names
}
