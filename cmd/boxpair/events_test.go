package main

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestFollowedEventsArePrintedOnce, however many come at once, and also after the database was away.
func TestFollowedEventsArePrintedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	cmd := exec.CommandContext(t.Context(), program, "events", "--follow", "--outbox", r.url)
	stdout, err := cmd.StdoutPipe()
	ok(t, err)
	stderr, err := cmd.StderrPipe()
	ok(t, err)
	ok(t, cmd.Start())
	lines, errs := make(chan string, 10_000), make(chan string, 100)
	for to, from := range map[chan string]*bufio.Scanner{lines: bufio.NewScanner(stdout), errs: bufio.NewScanner(stderr)} {
		go func() {
			defer close(to)
			for from.Scan() {
				to <- from.Text()
			}
		}()
	}
	write := func(topic string, n int) {
		r.exec(fmt.Sprintf(`INSERT INTO boxpair.outbox_events (dispatch_id, digest, shard, topic, payload, occurred_at, created_at)
			SELECT gen_random_uuid(), decode(repeat('00', 16), 'hex'), 1, '%s', '', now(), now() FROM generate_series(1, %d)`, topic, n))
	}
	printed := make(map[string]int) // by topic
	seen := make(map[string]bool)
	drain := func() {
		for len(lines) > 0 {
			words := strings.Fields(<-lines)
			if seen[words[1]] {
				t.Errorf("%s is printed again", words[1])
			}
			seen[words[1]] = true
			printed[words[3]]++
		}
	}
	await(t, func() error { // the first look must be over
		write("first", 1)
		if drain(); printed["first"] == 0 {
			return fmt.Errorf("nothing is printed")
		}
		return nil
	})
	all := func(topic string, n int) {
		t.Helper()
		write(topic, n)
		await(t, func() error {
			if drain(); printed[topic] != n {
				return fmt.Errorf("%d of %d are printed", printed[topic], n)
			}
			return nil
		})
	}
	all("many", 1234)
	r.exec(`ALTER SCHEMA boxpair RENAME TO away`)
	if text := <-errs; !strings.Contains(text, "outbox_events") {
		t.Errorf("of the error: %q", text)
	}
	r.exec(`ALTER SCHEMA away RENAME TO boxpair`)
	all("later", 3)
	all("more", 321)
	if printed["order.placed"] != 0 {
		t.Errorf("%d events from before are printed", printed["order.placed"])
	}
	ok(t, cmd.Process.Signal(syscall.SIGTERM))
	for range errs {
	}
	ok(t, cmd.Wait())
}
