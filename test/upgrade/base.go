package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/test/faults/child"
)

// Base is the older commit, whose tables, wire format and processes this commit works with. Until
// the first release Base may be moved on purpose: record that in CHANGELOG.
const Base = "77111d8481a7e694e05e45d93bb6eebbc61dc6af"

// Old is the built older state.
type Old struct {
	// Child is a program that runs as a child of the fault tests: see [child.Config].
	Child string
	// Command is the program boxpair.
	Command string

	grants string
	dir    string
}

// ErrNoHistory is returned by [Build] in a clone that lacks the commit [Base].
var ErrNoHistory = errors.New("the clone lacks the commit " + Base + ": fetch the history first (git fetch --unshallow)")

// Build checks the older state out of the repository of the working directory, and builds it. It
// takes a minute with a cold build cache. The caller must Remove the result.
func Build(ctx context.Context) (_ *Old, err error) {
	if _, err := output(ctx, "", "git", "rev-parse", "--quiet", "--verify", Base+"^{commit}"); err != nil {
		return nil, errors.Join(ErrNoHistory, err)
	}
	top, err := output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "boxpair-base-")
	if err != nil {
		return nil, err
	}
	old := &Old{Child: filepath.Join(dir, "child"), Command: filepath.Join(dir, "boxpair"), dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, old.Remove())
		}
	}()
	archive, source := filepath.Join(dir, "base.tar"), filepath.Join(dir, "source")
	for _, step := range []struct {
		in   string
		args []string
	}{
		{strings.TrimSpace(top), []string{"git", "archive", "--output", archive, "--prefix", "source/", Base}},
		{dir, []string{"tar", "-xf", archive}},
		{filepath.Join(source, "internal", "faulttest"), []string{"go", "build", "-buildvcs=false", "-o", old.Child, "./cmd/soak"}},
		{source, []string{"go", "build", "-buildvcs=false", "-o", old.Command, "./cmd/boxpair"}},
	} {
		if _, err := output(ctx, step.in, step.args...); err != nil {
			return nil, fmt.Errorf("build the older state: %w", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(source, "migrations", "grants", "postgres.sql"))
	old.grants = string(text)
	return old, err
}

// Remove removes the files of Build.
func (o *Old) Remove() error { return os.RemoveAll(o.dir) }

// Install creates the tables of the older state and of the service, like child.Install for this
// state.
func (o *Old) Install(ctx context.Context, url string) error {
	cmd := exec.CommandContext(ctx, o.Command, "migrate")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "BOXPAIR_DATABASE_URL="+url)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate to the older state: %w: %s", err, text)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statements := range []string{child.Schema, o.rights(), child.ServiceGrants()} {
		if _, err := conn.Exec(ctx, statements); err != nil {
			return fmt.Errorf("tables and rights of the older state: %w", err)
		}
	}
	return nil
}

// rights returns the grants of the older state to the roles of children. A consumer is also a
// producer.
func (o *Old) rights() string {
	const mark = "-- role: "
	sections := strings.Split(o.grants, mark)
	given := sections[:1]
	for _, section := range sections[1:] {
		role, _, _ := strings.Cut(section, "\n")
		switch child.Role(strings.TrimSpace(role)) {
		case child.Producer:
			given = append(given, section, strings.ReplaceAll(section, child.Producer.Login(), child.Consumer.Login()))
		case child.Relay, child.Consumer, child.Janitor:
			given = append(given, section)
		}
	}
	return strings.Join(given, mark)
}

// output runs a program and returns its output.
func output(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(text), nil
}
