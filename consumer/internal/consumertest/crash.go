package consumertest

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// The environment of a child process: the point of its death, and its database.
const (
	envPoint    = "BOXPAIR_TEST_KILL_AT"
	envDatabase = "BOXPAIR_TEST_DATABASE"
)

// Main runs the tests of a package, and fails if goroutines are left behind.
func Main(m *testing.M) {
	if os.Getenv(envPoint) != "" {
		os.Exit(m.Run()) // a child process, which will be killed
	}
	goleak.VerifyTestMain(m)
}

// Kill ends this process as kill -9 does.
func Kill() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

// AsChild runs, in a child process, the function for the database that the parent has named. In the
// parent AsChild does nothing.
func AsChild(t *testing.T, pg func(*testing.T, *Database[pgx.Tx], string), lite func(*testing.T, *Database[*sql.Tx], string)) {
	t.Helper()
	switch point, where := os.Getenv(envPoint), os.Getenv(envDatabase); {
	case point == "":
	case strings.HasPrefix(where, "postgres"):
		pg(t, OpenPostgres(t, where), point)
	default:
		lite(t, OpenSQLite(t, where), point)
	}
}

// DieIn runs a test in a child process that is killed at point.
func DieIn(t *testing.T, test, where, point string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(append(os.Environ(), envPoint+"="+point, envDatabase+"="+where), env...)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.Exited() || ctx.Err() != nil {
		t.Fatalf("child at %s was not killed: %v\n%s", point, err, out)
	}
}
