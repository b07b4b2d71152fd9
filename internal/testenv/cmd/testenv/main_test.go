package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/internal/testenv"
)

// asMain makes the test binary behave like the command.
const asMain = "BOXPAIR_TESTENV_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// command returns the command with arguments, and with servers given, or private
// ones to start.
func command(t *testing.T, private bool, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), asMain+"=1", "TMPDIR="+shared(t))
	database, broker := "postgres://given/", "amqp://given/"
	if private {
		database, broker = "", ""
	}
	cmd.Env = append(cmd.Env, testenv.DatabaseURL+"="+database, testenv.AMQP+"="+broker)
	cmd.Stderr = os.Stderr
	return cmd
}

// shared is a temporary directory in which the user postgres may work, too.
func shared(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "testenv-test-") //nolint:usetesting // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		os.RemoveAll(dir)
	})
	return dir
}

func TestExitStatusIsTheCommands(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 128 + 9} {
		cmd := command(t, false, "--", "sh", "-c", script)
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: status %d, want %d", script, got, want)
		}
	}
}

func TestGivenServersAreUsedAndNoneIsStarted(t *testing.T) {
	t.Parallel()
	out, err := command(t, false, "sh", "-c", "echo $TEST_DATABASE_URL $TEST_AMQP_URL $TMPDIR; ls $TMPDIR").Output()
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(string(out)), "\n"); len(lines) != 1 ||
		!strings.HasPrefix(lines[0], "postgres://given/ amqp://given/ ") {
		t.Fatalf("printed %q", out)
	}
}

func TestTwoEnvironmentsAtOnceAreStrangersAndCleanUpWhenTerminated(t *testing.T) {
	t.Parallel()
	// The grandchild stands for a test binary under go test.
	const script = `touch $TMPDIR/left; echo $TEST_DATABASE_URL; echo $TEST_AMQP_URL; echo $TEST_RABBITMQCTL; sleep 1000 & echo $!; wait`
	cmds := []*exec.Cmd{command(t, true, "--", "sh", "-c", script), command(t, true, "--", "sh", "-c", script)}
	read := []func() []string{start(t, cmds[0], 4), start(t, cmds[1], 4)}

	first, second := read[0](), read[1]()
	for i, line := range first {
		if line == "" || line == second[i] {
			t.Errorf("%q is shared or empty", line)
		}
	}
	for i, grandchild := range []string{first[3], second[3]} {
		if err := cmds[i].Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmds[i].Wait()
		if got, want := cmds[i].ProcessState.ExitCode(), 128+int(syscall.SIGTERM); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
		out, err := exec.Command("ps", "-o", "stat=", "-p", grandchild).Output()
		if err == nil && !bytes.HasPrefix(out, []byte("Z")) {
			t.Errorf("the command's own child is left: %s", out)
		}
	}
}

// start starts cmd, terminates it when the test ends unless it has ended by
// then, and returns a function that reads the first n lines that it prints.
func start(t *testing.T, cmd *exec.Cmd, n int) func() []string {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	})
	return func() []string {
		r := bufio.NewReader(stdout)
		lines := make([]string, n)
		for i := range lines {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			lines[i] = strings.TrimSpace(line)
		}
		return lines
	}
}
