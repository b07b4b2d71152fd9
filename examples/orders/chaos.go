package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"time"
)

const (
	roleEnv    = "BOXPAIR_ORDERS_ROLE"    // role of a child process
	optionsEnv = "BOXPAIR_ORDERS_OPTIONS" // settings of a child process, as JSON

	countInterval = 50 * time.Millisecond
	// killPause is the time before the next kill; up to killSpread is added to it.
	killPause  = 300 * time.Millisecond
	killSpread = 600 * time.Millisecond
)

// supervisor runs the system as child processes, kills one after another with SIGKILL, and starts
// each again.
type supervisor struct {
	opts   options
	logger *slog.Logger

	mu     sync.Mutex
	killed int
	total  counts               // of children that have ended
	live   map[string]*exec.Cmd // by role
	last   map[string]counts    // of the running children, by role
}

func newSupervisor(opts options, logger *slog.Logger) *supervisor {
	return &supervisor{opts: opts, logger: logger, live: make(map[string]*exec.Cmd), last: make(map[string]counts)}
}

// roles lists the child processes. On real servers each service and relay is a process; the
// embedded default has a transport within one process, and so runs in one.
func (s *supervisor) roles() []string {
	if !s.opts.onPostgres() {
		return []string{roleSystem}
	}
	roles := []string{roleShop}
	for _, service := range services {
		roles = append(roles, service, relayPrefix+service)
	}
	return roles
}

func (s *supervisor) kills() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed
}

func (s *supervisor) counts() counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.total
	for _, n := range s.last {
		c = c.plus(n)
	}
	return c
}

func (s *supervisor) run(ctx context.Context) error {
	var parts []func(context.Context) error
	for _, role := range s.roles() {
		parts = append(parts, func(ctx context.Context) error { return s.keep(ctx, role) })
	}
	parts = append(parts, s.killAtRandom)
	return together(ctx, parts...)
}

// keep starts the child of a role again whenever the child ends, until ctx ends or its work is
// done.
func (s *supervisor) keep(ctx context.Context, role string) error {
	for ctx.Err() == nil {
		err := s.child(ctx, role)
		var exit *exec.ExitError
		switch {
		case err == nil:
			<-ctx.Done()
		case !errors.As(err, &exit):
			return fmt.Errorf("child %s: %w", role, err)
		case exit.Exited():
			s.logger.ErrorContext(ctx, "child failed, starting it again", "role", role, "status", exit.ExitCode())
			select {
			case <-ctx.Done():
			case <-time.After(killPause):
			}
		}
	}
	return nil
}

// child runs one child process. The process ends when its standard input is closed, also when this
// process dies.
func (s *supervisor) child(ctx context.Context, role string) error {
	settings, err := json.Marshal(s.opts)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, optionsEnv+"="+string(settings))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = stdin.Close() })
	defer stop()
	s.mu.Lock()
	s.live[role] = cmd
	s.mu.Unlock()

	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var c counts
		if json.Unmarshal(lines.Bytes(), &c) == nil {
			s.mu.Lock()
			s.last[role] = c
			s.mu.Unlock()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, role)
	s.total = s.total.plus(s.last[role])
	delete(s.last, role)
	return cmd.Wait()
}

// killAtRandom kills children until opts.Kills is reached.
func (s *supervisor) killAtRandom(ctx context.Context) error {
	for s.kills() < s.opts.Kills {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(killPause + rand.N(killSpread)):
		}
		s.killOne()
	}
	<-ctx.Done()
	return nil
}

func (s *supervisor) killOne() {
	s.mu.Lock()
	defer s.mu.Unlock()
	victim := rand.IntN(max(1, len(s.live)))
	for _, cmd := range s.live {
		if victim == 0 && cmd.Process.Kill() == nil {
			s.killed++
			return
		}
		victim--
	}
}

// runChild runs a child's role until its standard input ends.
func runChild[TX any](ctx context.Context, opts options, open opener[TX], role string, logger *slog.Logger) error {
	urls := [2]string{opts.DatabaseURL, opts.AMQPURL}
	if err := json.Unmarshal([]byte(os.Getenv(optionsEnv)), &opts); err != nil {
		return fmt.Errorf("%s: %w", optionsEnv, err)
	}
	opts.DatabaseURL, opts.AMQPURL = urls[0], urls[1]
	dbs, err := openAll(ctx, opts, open)
	if err != nil {
		return err
	}
	defer closeAll(dbs)
	net, err := newNetwork(opts, logger)
	if err != nil {
		return err
	}
	if err := net.declare(); err != nil {
		return errors.Join(err, net.close())
	}
	s := &system[TX]{opts: opts, logger: logger, dbs: dbs, net: net}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	report := func() { _ = json.NewEncoder(os.Stdout).Encode(s.counts()) }
	err = together(ctx, func(ctx context.Context) error { return s.run(ctx, role) }, func(ctx context.Context) error {
		ticker := time.NewTicker(countInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
				report()
			}
		}
	})
	report()
	return errors.Join(err, net.close())
}
