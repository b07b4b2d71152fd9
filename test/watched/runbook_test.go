package watched

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/test/shop"
)

// section is the part of the runbook about one alert.
type section struct {
	alert  string
	blocks []block
}

// block is some code of the runbook.
type block struct {
	sql  bool
	text string
}

// changes tells whether a block changes something, or runs a relay.
func (b *block) changes() bool {
	return !b.sql && changing.MatchString(b.text)
}

var (
	changing = regexp.MustCompile(`boxpair (?:relay|pause|resume|replay|dead (?:redrive|discard|edit)|effects (?:resolve|redrive|discard)) `)
	heading  = regexp.MustCompile(`(?m)^## (.+)$`)
	code     = regexp.MustCompile("(?s)```(sh|sql)\n(.*?)```")
)

// runbook reads the runbook.
func runbook(t *testing.T) map[string]*section {
	t.Helper()
	text, err := os.ReadFile(runbookFile)
	ok(t, err)
	all := make(map[string]*section)
	places := heading.FindAllStringSubmatchIndex(string(text), -1)
	for i, place := range places {
		end := len(text)
		if i+1 < len(places) {
			end = places[i+1][0]
		}
		s := &section{alert: string(text[place[2]:place[3]])}
		for _, m := range code.FindAllStringSubmatch(string(text[place[1]:end]), -1) {
			s.blocks = append(s.blocks, block{m[1] == "sql", m[2]})
		}
		all[s.alert] = s
	}
	return all
}

// looks are the blocks that change nothing, and remedies the others.
func (s *section) looks() []block {
	return slices.DeleteFunc(slices.Clone(s.blocks), func(b block) bool { return b.changes() })
}

func (s *section) remedies() []block {
	return slices.DeleteFunc(slices.Clone(s.blocks), func(b block) bool { return !b.changes() })
}

// TestRunbookEndsEachAlert causes each fault, once for each way out of the runbook, and follows the
// runbook until the condition of the alert has ended.
func TestRunbookEndsEachAlert(t *testing.T) {
	t.Parallel()
	book, command := runbook(t), shop.Command(t)
	for alert, ways := range ways() {
		s, used := book[alert], make(map[int]bool)
		if s == nil {
			t.Fatalf("%s is not in the runbook", alert)
		}
		for name, w := range ways {
			for _, step := range w.steps {
				used[step] = true
			}
			t.Run(alert+"/"+name, func(t *testing.T) {
				t.Parallel()
				follow(t, command, s, w)
			})
		}
		if n := len(s.remedies()); len(used) != n {
			t.Errorf("%s: %d of its %d remedies are tried", alert, len(used), n)
		}
		delete(book, alert)
	}
	for _, alert := range slices.Sorted(maps.Keys(book)) {
		t.Errorf("%s: nothing of it is tried", alert)
	}
}

// follow goes one way of a section.
func follow(t *testing.T, command string, s *section, w way) {
	t.Helper()
	r := newRig(t, command)
	w.cause(r)
	if w.fires != nil {
		r.until("the condition of the alert is true", func() bool { return w.fires(r) })
	}
	for _, b := range s.looks() {
		r.look(b)
	}
	for i, step := range w.steps {
		if w.before != nil {
			w.before(r, i)
		}
		r.shell(s.remedies()[step].text, 0)
	}
	if w.after != nil {
		w.after(r)
	}
	if w.fires != nil {
		r.until("the condition of the alert has ended", func() bool { return !w.fires(r) })
	}
	r.stopRelays()
}

// look runs a block that only reads.
func (r *rig) look(b block) {
	r.t.Helper()
	if !b.sql {
		r.shell(b.text, 1) // a bad state is what is looked for
		return
	}
	rows, err := r.pool.Query(r.t.Context(), b.text)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		r.t.Errorf("%v in:\n%s", err, b.text)
	}
}

// shell runs the commands of a block as they are, in a shell with the variables of the runbook. A
// relay runs on beside. An exit status of more than most fails the test.
func (r *rig) shell(text string, most int) {
	r.t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "boxpair relay ") {
			r.startRelay(line)
			continue
		}
		ctx, cancel := context.WithTimeout(r.t.Context(), patience)
		cmd := exec.CommandContext(ctx, "sh", "-euc", line)
		cmd.Env = r.environ()
		out, err := cmd.CombinedOutput()
		cancel()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > most || err != nil && exit == nil {
			r.t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// environ is the environment of the runbook's reader.
func (r *rig) environ() []string {
	env := []string{
		"PATH=" + filepath.Dir(r.command) + string(filepath.ListSeparator) + os.Getenv("PATH"), "HOME=" + r.t.TempDir(),
		"BOXPAIR_EXCHANGES=queue", "BOXPAIR_LEASE=2s", "BOXPAIR_GRACE=1ms",
	}
	for name, value := range r.variables {
		env = append(env, name+"="+value)
	}
	return env
}

// startRelay runs a command line until the rig ends.
func (r *rig) startRelay(line string) *shop.Started {
	r.t.Helper()
	cmd := exec.Command("sh", "-euc", "exec "+line) //nolint:noctx // it is stopped by a signal
	cmd.Env = r.environ()
	started := shop.Start(r.t, cmd)
	stop := sync.OnceFunc(func() {
		if err := started.Stop(); err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	r.relays = append(r.relays, stop)
	return started
}

func (r *rig) stopRelays() {
	for _, stop := range r.relays {
		stop()
	}
}

// until waits until is returns true.
func (r *rig) until(what string, is func() bool) {
	r.t.Helper()
	deadline := time.After(patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for !is() {
		select {
		case <-deadline:
			r.t.Fatalf("not so within %v: %s\n%s", patience, what, regexp.MustCompile("(?m)^(?:#|.*_bucket).*\n").ReplaceAllString(r.scrape(), ""))
		case <-again.C:
		}
	}
}
