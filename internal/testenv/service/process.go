package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// killGrace is how long a process may take to end after a signal.
const killGrace = 20 * time.Second

// process is a running command. A goroutine of its own waits for its end.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // result of the process; written before done is closed
}

// start runs cmd in a process group of its own, with its output appended to the file log. On
// systems that support it, the kernel sends orphaned to the command when this process dies.
func start(cmd *exec.Cmd, log string, orphaned syscall.Signal) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	detach(cmd, orphaned)

	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The death signal comes when the forking thread ends, and not the process, so the thread
		// waits for the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

// end sends sig, waits, and kills the rest of the process group. It returns no error: callers only
// need the process to be gone.
func (p *process) end(sig syscall.Signal) {
	if p == nil {
		return
	}
	_ = signalProcess(p.cmd.Process, sig)
	timer := time.NewTimer(killGrace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	killGroup(p.cmd.Process)
	<-p.done
}

// exited tells whether the process has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// errExited marks the error of a server that ended before it was ready, as after a lost race for a
// port.
var errExited = errors.New("server exited before it was ready")

// await calls probe until it succeeds, the process ends or ctx is done. The end of the process
// cancels a running probe, since another server on the port may never answer.
func (p *process) await(ctx context.Context, probe func(context.Context) error) error {
	living, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-living.Done():
		}
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-p.done:
			return fmt.Errorf("%w: %w\n%s", errExited, orElse(p.err, errors.New("status 0")), tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("server not ready: %w; last probe: %w\n%s", context.Cause(ctx), orElse(last, errors.New("none")), tail(p.log))
		case <-tick.C:
			if last = probe(living); last == nil && !p.exited() {
				return nil
			}
		}
	}
}

func orElse(err, other error) error {
	if err == nil {
		return other
	}
	return err
}

// tail returns the last lines of a log, for errors.
func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const limit = 3000
	if info, err := f.Stat(); err == nil && info.Size() > limit {
		_, _ = f.Seek(-limit, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return strings.TrimSpace(string(text))
}
