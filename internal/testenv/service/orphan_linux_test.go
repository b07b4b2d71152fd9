package service

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// orphanEnv makes the test binary start servers, say which, and wait for its
// end.
const orphanEnv = "BOXPAIR_TESTENV_ORPHAN"

type orphans struct{ Dirs []string }

func orphan() {
	p, err := StartPostgres(context.Background())
	if err != nil {
		panic(err)
	}
	r, err := StartRabbitMQ(context.Background())
	if err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(orphans{Dirs: []string{p.dir, r.dir}}); err != nil {
		panic(err)
	}
	select {}
}

func TestServersEndWithTheProcessThatIsKilled(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), orphanEnv+"=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var started orphans
	err = json.NewDecoder(bufio.NewReader(stdout)).Decode(&started)
	for _, dir := range started.Dirs {
		t.Cleanup(func() { os.RemoveAll(dir) }) // a killed process cannot
		seen(t, dir)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range started.Dirs {
		gone(t, dir)
	}
}

// seen checks that a process belongs to dir, without which gone proves nothing.
func seen(t *testing.T, dir string) {
	t.Helper()
	if len(processesOf(t, dir)) == 0 {
		t.Errorf("no process belongs to %s", dir)
	}
}

// gone waits until no process belongs to dir: an Erlang port program ends a
// moment after its node.
func gone(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		left := processesOf(t, dir)
		if len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("left of %s: %q", filepath.Base(dir), left)
		}
	}
}

// processesOf returns the command lines of the processes that mention dir, or
// have it in their environment or as their working directory.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, proc := range entries {
		args, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		env, _ := os.ReadFile(filepath.Join(proc, "environ"))
		cwd, _ := os.Readlink(filepath.Join(proc, "cwd"))
		if strings.Contains(string(args)+string(env)+cwd, dir) {
			found = append(found, strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}
