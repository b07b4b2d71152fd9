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

// server is the common part of all servers: a directory, a command, a probe of readiness, and the
// running process.
type server struct {
	name  string // unique; the server answers under this name
	dir   string // all files of the server
	log   string
	run   func() *exec.Cmd
	ready func(context.Context) error

	stop     syscall.Signal // asks for an orderly end
	orphaned syscall.Signal // sent by the kernel when this process dies
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
	// Servers that run as another user must reach their own directory below dir.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &server{name: name, dir: dir, log: filepath.Join(dir, "log")}, nil
}

// Start runs the server and returns when it answers. Call it after Crash or Stop; a new server is
// running already.
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

// Crash ends the server at once, without any shutdown, and returns when its processes are gone.
// [server.Start] restarts it on its port with its written data.
func (s *server) Crash() { s.crash(s.proc) }

// Stop shuts the server down in order, and returns when its processes are gone. [server.Start]
// restarts it.
func (s *server) Stop() { s.proc.end(s.stop) }

// Pause stops the server's main process with a signal, and Resume continues it. Only RabbitMQ has
// no other process.
func (s *server) Pause() error { return pause(s.proc.cmd.Process) }

// Resume continues a paused server.
func (s *server) Resume() error { return resume(s.proc.cmd.Process) }

// Dir returns the directory with all files of the server. Close removes it.
func (s *server) Dir() string { return s.dir }

// Log returns the file with the output of the server.
func (s *server) Log() string { return s.log }

// Close stops the server and removes all its files. The server cannot be started again. A second
// Close is harmless.
func (s *server) Close() error {
	s.proc.end(s.stop)
	s.proc = nil
	if s.cleanup != nil {
		s.cleanup()
		s.cleanup = nil
	}
	return os.RemoveAll(s.dir)
}
