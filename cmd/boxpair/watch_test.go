package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/boxpair/boxpair/health"
)

// watch starts status --watch with a pipe, and returns its pages, line by line, and a function that
// ends the watch.
func watch(t *testing.T, args ...string) (lines *bufio.Scanner, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append([]string{"status", "--watch", "--every", "20ms"}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	stdout, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	lines = bufio.NewScanner(stdout)
	return lines, func() {
		t.Helper()
		ok(t, cmd.Process.Signal(syscall.SIGTERM))
		for lines.Scan() {
		}
		if err := cmd.Wait(); err != nil || errs.Len() > 0 {
			t.Errorf("the watch ended with %v, %s", err, &errs)
		}
	}
}

// TestWatchPrintsOneObjectAfterAnother, also while the tables are away.
func TestWatchPrintsOneObjectAfterAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	lines, end := watch(t, "-o", "json", "--outbox", r.url)
	until := func(state health.State) (got report) {
		t.Helper()
		for lines.Scan() {
			got = report{}
			if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			if got.State == state {
				return got
			}
		}
		t.Fatalf("the watch ended after %+v", got)
		return got
	}
	if got := until(health.Degraded); len(got.Outboxes) != 1 || got.Outboxes[0].Pending != 3 || len(got.Errors) > 0 {
		t.Errorf("%+v", got)
	}
	r.exec(`ALTER SCHEMA boxpair RENAME TO away`)
	if got := until(unknown); len(got.Errors) != 1 || !strings.Contains(got.Errors[0], `relation "boxpair.`) {
		t.Errorf("%+v", got)
	}
	r.exec(`ALTER SCHEMA away RENAME TO boxpair`)
	until(health.Degraded)
	end()
}

// TestWatchGoesOnWithoutItsServer, and says why nothing is shown.
func TestWatchGoesOnWithoutItsServer(t *testing.T) {
	t.Parallel()
	const password = "canary-of-a-password"
	lines, end := watch(t, "--outbox", "postgres://monitor:"+password+"@127.0.0.1:1/shop")
	for pages := 0; pages < 3 && lines.Scan(); {
		if strings.Contains(lines.Text(), password) || strings.ContainsAny(lines.Text(), "?\x1b") {
			t.Fatalf("%q", lines.Text())
		}
		if strings.HasPrefix(lines.Text(), "--outbox 127.0.0.1:1/shop: failed to connect") {
			pages++
		}
	}
	end()
}
