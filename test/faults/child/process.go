package child

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/boxpair/boxpair/internal/fault"
)

// ErrNoFaults is returned by [Start] for a child with faults in a program that was built without
// -tags faults.
var ErrNoFaults = errors.New("built without -tags faults: nothing would be injected")

// Process is a running child. Its methods may be called from several goroutines.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	cfg   Config
	done  chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	listens bool          // the child handles SIGTERM, which would kill it otherwise
	ready   bool
	faults  []string // announced faults
	last    *Report  // the newest sample
	report  *Report  // at the end
	err     error    // result of the process
}

// Start runs this program, or Config.Program, as a child. faults is a plan of package fault, or "".
// The child ends with this process. The caller must end the child with [Process.Stop] or
// [Process.Kill].
func Start(ctx context.Context, cfg Config, faults string) (*Process, error) {
	if faults != "" && !fault.Enabled {
		return nil, ErrNoFaults
	}
	if _, err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("child: %w", err)
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	program := cfg.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	p := &Process{cfg: cfg, done: make(chan struct{}), changed: make(chan struct{})}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(os.Environ(), variable+"="+string(text), fault.Variable+"="+faults)
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.follow(stdout, stderr)
	return p, nil
}

// follow reads the child's output until the child ends.
func (p *Process) follow(stdout, stderr io.Reader) {
	var wg sync.WaitGroup
	wg.Go(func() { p.read(stdout, p.heard) })
	wg.Go(func() {
		f, err := os.OpenFile(filepath.Join(p.cfg.Dir, p.cfg.Name+".err"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			defer f.Close()
		}
		p.read(stderr, func(line []byte) {
			_, _ = f.Write(append(line, '\n'))
			if text, ok := strings.CutPrefix(string(line), "fault: "); ok {
				p.change(func() { p.faults = append(p.faults, text) })
			}
		})
	})
	wg.Wait()
	err := p.cmd.Wait()
	p.change(func() { p.err = err })
	close(p.done)
}

func (p *Process) read(from io.Reader, line func([]byte)) {
	s := bufio.NewScanner(from)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		line(s.Bytes())
	}
	_, _ = io.Copy(io.Discard, from) // an overlong line must not stop the child
}

func (p *Process) heard(line []byte) {
	what, text, _ := bytes.Cut(line, []byte{' '})
	switch string(what) {
	case "listens":
		p.change(func() { p.listens = true })
	case "ready":
		p.change(func() { p.ready = true })
	case "sample", "report":
		r := &Report{}
		if json.Unmarshal(text, r) != nil {
			return
		}
		p.change(func() {
			p.last = r
			if string(what) == "report" {
				p.report = r
			}
		})
	}
}

func (p *Process) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits until cond, which is called with the lock held, returns true. It fails if the child
// or ctx ends before.
func (p *Process) await(ctx context.Context, what string, cond func() bool) error {
	for {
		p.mu.Lock()
		ok, changed := cond(), p.changed
		p.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-p.done:
			p.mu.Lock()
			defer p.mu.Unlock()
			if cond() {
				return nil
			}
			return fmt.Errorf("child %s ended (%w) before %s; see %s", p.cfg.Name, orEnd(p.err), what, p.cfg.Dir)
		case <-ctx.Done():
			return fmt.Errorf("child %s: waited for %s: %w; see %s", p.cfg.Name, what, context.Cause(ctx), p.cfg.Dir)
		}
	}
}

func orEnd(err error) error {
	if err == nil {
		return errors.New("status 0")
	}
	return err
}

// Name returns the child's name.
func (p *Process) Name() string { return p.cfg.Name }

// PID returns the child's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Config returns the child's configuration.
func (p *Process) Config() Config { return p.cfg }

// Ready waits until the child works: a consumer, for example, has subscribed.
func (p *Process) Ready(ctx context.Context) error {
	return p.await(ctx, "it was ready", func() bool { return p.ready })
}

// Fault waits until n faults have been announced.
func (p *Process) Fault(ctx context.Context, n int) error {
	return p.await(ctx, fmt.Sprintf("%d faults", n), func() bool { return len(p.faults) >= n })
}

// Faults returns the announced faults, such as "before-mark kill (time 3)".
func (p *Process) Faults() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.faults...)
}

// Until waits until a sample or the report fulfils cond; what describes cond in errors.
func (p *Process) Until(ctx context.Context, what string, cond func(*Report) bool) error {
	return p.await(ctx, what, func() bool { return p.last != nil && cond(p.last) })
}

// Last returns the newest sample, or the report; nil before the first sample.
func (p *Process) Last() *Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Ended returns a channel that is closed when the child has ended.
func (p *Process) Ended() <-chan struct{} { return p.done }

// Wait waits for the child's end, and returns nil for exit status 0.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("child %s did not end: %w", p.cfg.Name, context.Cause(ctx))
	}
}

// Killed waits for the child's end by SIGKILL, for example by its own fault.
func (p *Process) Killed(ctx context.Context) error {
	err := p.Wait(ctx)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
			return nil
		}
	}
	return fmt.Errorf("child %s was not killed: %w", p.cfg.Name, orEnd(err))
}

// Signal sends a signal. A child that has ended is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Terminate asks the child to end in order, once the child handles the signal.
func (p *Process) Terminate(ctx context.Context) error {
	if err := p.await(ctx, "it listened for signals", func() bool { return p.listens }); err != nil {
		return err
	}
	return p.Signal(syscall.SIGTERM)
}

// Release continues a waiting fault.
func (p *Process) Release() error { return p.Signal(syscall.SIGUSR1) }

// Kill kills the child with SIGKILL, and waits for its end.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop ends the child in order, and returns its report.
func (p *Process) Stop(ctx context.Context) (*Report, error) {
	if err := p.Terminate(ctx); err != nil {
		return nil, err
	}
	if err := p.Wait(ctx); err != nil {
		return nil, fmt.Errorf("child %s: %w; see %s", p.cfg.Name, err, p.cfg.Dir)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.report == nil {
		return nil, fmt.Errorf("child %s ended without a report", p.cfg.Name)
	}
	return p.report, nil
}
