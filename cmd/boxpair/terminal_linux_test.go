package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a terminal on which the program runs, with all that the program prints.
type terminal struct {
	t    *testing.T
	cmd  *exec.Cmd
	keys *os.File // what is written here is typed
	read chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

// onTerminal starts the program on a terminal of its own, which is so many columns wide.
func onTerminal(t *testing.T, width uint16, env []string, args ...string) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	ok(t, err)
	term := &terminal{t: t, cmd: exec.CommandContext(t.Context(), program, args...), keys: keys, read: make(chan struct{})}
	term.resize(width)
	ok(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	ok(t, err)
	screen, err := os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	ok(t, err)
	term.cmd.Env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR="), env...)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = screen, screen, screen
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	ok(t, term.cmd.Start())
	ok(t, screen.Close())
	go func() {
		defer close(term.read)
		part := make([]byte, 4096)
		for {
			n, err := keys.Read(part)
			if err != nil {
				return // the program has ended
			}
			term.mu.Lock()
			term.out.Write(part[:n])
			term.mu.Unlock()
		}
	}()
	return term
}

func (t *terminal) resize(width uint16) {
	t.t.Helper()
	ok(t.t, unix.IoctlSetWinsize(int(t.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: width}))
}

// printed returns all that was printed so far.
func (t *terminal) printed() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(t.out.String(), "\r\n", "\n")
}

// ends waits for the end of the program, and returns its exit status and all that it has printed.
func (t *terminal) ends() (status int, out string) {
	t.t.Helper()
	err := t.cmd.Wait()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		status, err = exit.ExitCode(), nil
	}
	ok(t.t, err)
	<-t.read
	ok(t.t, t.keys.Close())
	return status, t.printed()
}

const yellow = "\x1b[33mdegraded\x1b[0m"

func TestColorsAreForTerminals(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	for _, c := range []struct {
		env, args    string // one of each
		there, piped bool   // colors on a terminal, and in a pipe
	}{
		{"", "", true, false},
		{"NO_COLOR=1", "", false, false},
		{"NO_COLOR=", "", true, false}, // empty is as good as not set
		{"TERM=dumb", "", false, false},
		{"BOXPAIR_COLOR=never", "", false, false},
		{"", "--color=never", false, false},
		{"", "--color=always", true, true},
		{"NO_COLOR=1", "--color=always", true, true},
		{"TERM=dumb", "--color=always", true, true},
		{"", "--output=json", false, false},
		{"BOXPAIR_COLOR=always", "--output=json", false, false},
	} {
		t.Run(cmp.Or(strings.TrimSpace(c.env+" "+c.args), "nothing set"), func(t *testing.T) {
			t.Parallel()
			args := append([]string{"status", "--outbox", url, "--inbox", url}, strings.Fields(c.args)...)
			status, out := onTerminal(t, 100, strings.Fields(c.env), args...).ends()
			if status != exitOK || strings.Contains(out, yellow) != c.there || strings.Contains(out, "\x1b") != c.there {
				t.Errorf("on a terminal: %d, %q", status, out)
			}
			status, out, errs := call(t, append([]string{"TERM=xterm", "NO_COLOR="}, strings.Fields(c.env)...), args...)
			if status != exitOK || errs != "" || strings.Contains(out, yellow) != c.piped || strings.Contains(out, "\x1b") != c.piped {
				t.Errorf("in a pipe: %d, %q, %q", status, out, errs)
			}
		})
	}
}

// home begins each page of a watch on a terminal.
const home = "\x1b[H\x1b[2J\x1b[3J"

// watches waits for a whole page that shows what is wanted and was printed after the first skip bytes.
func (t *terminal) watches(skip int, shows func(page string) bool) {
	t.t.Helper()
	await(t.t, func() error {
		pages := strings.Split(t.printed()[skip:], home)
		for _, page := range pages[1:max(1, len(pages)-1)] {
			if shows(page) {
				return nil
			}
		}
		return fmt.Errorf("the pages are %q", pages[max(0, len(pages)-2):])
	})
}

func TestWatchShowsWhatHasChanged(t *testing.T) {
	t.Parallel()
	url, change := plantSQLite(t)
	term := onTerminal(t, 100, nil, "status", "--watch", "--every", "20ms", "--outbox", url)
	const counts = "; following 0; dead 0\n" // the end of a line that fits into 100 columns
	term.watches(0, func(page string) bool { return strings.Contains(page, counts) && strings.Contains(page, yellow) })
	if !strings.HasPrefix(term.printed(), home) {
		t.Errorf("the first page is not on an empty screen: %q", term.printed())
	}
	term.resize(40)
	term.watches(len(term.printed()), func(page string) bool { return !strings.Contains(page, counts) })
	change(`INSERT INTO boxpair_outbox_parked (id, shard, key, state, attempts, parked_at, last_error) VALUES (1, 1, '', 'dead', 7, 1, 'no route')`)
	term.watches(0, func(page string) bool { return strings.Contains(page, "dead: 1 of topic order.placed") })

	_, err := term.keys.WriteString("\x03") // Ctrl-C
	ok(t, err)
	if status, out := term.ends(); status != exitOK || strings.Contains(out, "interrupted") {
		t.Errorf("%d, %q", status, out)
	}
}

func TestWatchOnATerminalWithoutEscapesPrintsNone(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	term := onTerminal(t, 100, []string{"TERM=dumb"}, "status", "--watch", "--every", "20ms", "--outbox", url)
	await(t, func() error {
		if out := term.printed(); strings.Count(out, "; dead 1\n") < 3 {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	ok(t, term.cmd.Process.Signal(syscall.SIGTERM))
	if status, out := term.ends(); status != exitOK || strings.Contains(out, "\x1b") {
		t.Errorf("%d, %q", status, out)
	}
}
