package shop

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds the waits of a test, on a machine that is busy with many tests.
const patience = time.Minute

// dir is the directory of the command, once it is built.
var dir string

var built = sync.OnceValues(func() (string, error) {
	var err error
	if dir, err = os.MkdirTemp("", "boxpair-command-"); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "boxpair")
	out, err := exec.Command("go", "-C", "../../cmd/boxpair", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// Command returns the path of the command boxpair, which it builds once, for tests in a folder of the
// module test.
func Command(t testing.TB) string {
	t.Helper()
	path, err := built()
	ok(t, err)
	return path
}

// Cleanup removes the built command. TestMain calls it after the tests.
func Cleanup() {
	if dir != "" {
		_ = os.RemoveAll(dir)
	}
}

// Started is a command that runs on beside the test.
type Started struct {
	cmd   *exec.Cmd
	ended chan error

	mu  sync.Mutex
	log strings.Builder
}

// Start starts cmd. Its standard error is the log.
func Start(t testing.TB, cmd *exec.Cmd) *Started {
	t.Helper()
	s := &Started{cmd: cmd, ended: make(chan error, 1)}
	cmd.Stderr = s
	ok(t, cmd.Start())
	go func() { s.ended <- cmd.Wait() }()
	return s
}

// Stop ends the command by SIGTERM, and returns an error unless it then ends well.
func (s *Started) Stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case err := <-s.ended:
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", s.cmd, err, s.Log())
		}
		return nil
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		return fmt.Errorf("%s does not end:\n%s", s.cmd, s.Log())
	}
}

// Write adds to the log. It is called by the command.
func (s *Started) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

// Log returns what the command has logged so far.
func (s *Started) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// run runs a command to its end, and returns what a terminal shows.
func run(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		fmt.Fprintf(&stderr, "[exit status %d]\n", exit.ExitCode())
	} else {
		ok(t, err)
	}
	return stdout.String() + stderr.String()
}

// Until asks again and again until what returns no error, and fails the test after a minute.
func Until(t testing.TB, what func() error) {
	t.Helper()
	deadline := time.After(patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := what()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("not so within %v: %v", patience, err)
		}
	}
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
