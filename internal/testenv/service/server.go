package service

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// startTimeout bounds one attempt to start a server, on a busy machine.
const startTimeout = 2 * time.Minute

// server is what both kinds of server share: a directory, a way to run it, a
// way to ask whether it is ready, and the process that runs now.
type server struct {
	name  string // unique; the server answers under it
	dir   string // everything that it writes
	log   string
	run   func() *exec.Cmd
	ready func(context.Context) error

	stop     syscall.Signal // asks for an orderly end
	orphaned syscall.Signal // what the kernel sends when this process dies
	crash    func(*process)
	cleanup  func() // after the process has ended, before dir is removed

	proc *process
}

func newServer(kind string) (*server, error) {
	name := "boxpair-" + kind + "-" + token()
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return nil, err
	}
	// Servers that run as another user have to reach their own directory in it.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &server{name: name, dir: dir, log: filepath.Join(dir, "log")}, nil
}

// Start runs the server and returns when it answers. It is for a server that
// was stopped by Crash; a server is returned started.
func (s *server) Start(ctx context.Context) error {
	if s.proc != nil && !s.proc.exited() {
		return errors.New(s.name + " runs already")
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	proc, err := start(s.run(), s.log, s.orphaned)
	if err != nil {
		return err
	}
	if err := proc.await(ctx, s.ready); err != nil {
		proc.end(syscall.SIGKILL)
		return err
	}
	s.proc = proc
	return nil
}

// Crash ends the server at once, without a shutdown of any kind, and returns
// when its processes are gone. [server.Start] brings it back on the same port
// with what it had written.
func (s *server) Crash() { s.crash(s.proc) }

// Stop ends the server in its orderly way, and returns when its processes are
// gone. [server.Start] brings it back.
func (s *server) Stop() { s.proc.end(s.stop) }

// Pause stops the server's main process where it stands, and Resume lets it go on. Only
// RabbitMQ has no other process.
func (s *server) Pause() error { return pause(s.proc.cmd.Process) }

// Resume lets a server go on that was paused.
func (s *server) Resume() error { return resume(s.proc.cmd.Process) }

// Dir is the directory in which the server keeps everything. It is removed with it.
func (s *server) Dir() string { return s.dir }

// Log is the file to which the server writes its output.
func (s *server) Log() string { return s.log }

// Close stops the server and removes everything that it wrote. The server
// cannot be started again. Closing twice is harmless.
func (s *server) Close() error {
	s.proc.end(s.stop)
	s.proc = nil
	if s.cleanup != nil {
		s.cleanup()
		s.cleanup = nil
	}
	return os.RemoveAll(s.dir)
}
