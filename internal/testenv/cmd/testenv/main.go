// Command testenv runs a command with a private PostgreSQL and a private RabbitMQ, which are
// started before the command and removed after it:
//
//	go run ./internal/testenv/cmd/testenv -- go test -race ./...
//
// The command gets TEST_DATABASE_URL, TEST_AMQP_URL, TEST_RABBITMQCTL and TEST_PG_BIN. If
// TEST_DATABASE_URL or TEST_AMQP_URL is already set, that server is used and no server is started
// in its place. A MariaDB or MySQL is started at the first request of a test to the address in
// TEST_MYSQL_FROM, unless TEST_MYSQL_URL is set. TMPDIR is a directory that is removed in the end.
// Without a command testenv prints the variables and waits for an interrupt.
//
// The servers run from installed binaries: the newest version of PostgreSQL, or the version in the
// directory of the flag -postgres. Missing servers are installed with apt-get if possible (root on
// Debian or a relative of it), and otherwise run in Docker.
//
// The exit status is the command's; 128 and the number of the signal that ended the command; 127 if
// the command could not be started, 1 if a server could not be started, 2 for wrong usage. An
// interrupt is forwarded to the command and its processes; a second interrupt kills them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/internal/testenv/service"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: testenv [-postgres directory] [-- command [argument …]]")
		flag.PrintDefaults()
	}
	postgres := flag.String("postgres", "", "the directory with initdb and postgres; that of the newest version if empty")
	flag.Parse()
	os.Exit(run(*postgres, flag.Args()))
}

func run(postgresBin string, command []string) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	env, err := startUnlessInterrupted(&environment{postgresBin: postgresBin}, signals)
	defer env.close()
	if err != nil {
		say("%v", err)
		return 1
	}
	if err := env.offerMySQL(); err != nil {
		say("%v", err)
		return 1
	}
	if len(command) == 0 {
		for _, kv := range env.vars {
			fmt.Println("export " + kv)
		}
		say("running; interrupt to stop")
		<-signals
		return 0
	}
	if err := env.addScratch(); err != nil {
		say("%v", err)
		return 1
	}
	return child(command, env.vars, signals)
}

// environment holds the started servers and the variables with their addresses.
type environment struct {
	postgresBin string // "" for the newest

	mu      sync.Mutex
	vars    []string
	closers []func() error
}

// startUnlessInterrupted starts the servers that the process's environment does not name. It
// returns env with the running servers, also on an error.
func startUnlessInterrupted(env *environment, signals <-chan os.Signal) (*environment, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- env.start(ctx) }()
	select {
	case err := <-done:
		return env, err
	case sig := <-signals:
		cancel(fmt.Errorf("%v while starting", sig))
		return env, errors.Join(context.Cause(ctx), <-done)
	}
}

// start starts the servers at once.
func (e *environment) start(ctx context.Context) error {
	postgres := os.Getenv(testenv.DatabaseURL) == ""
	rabbitmq := os.Getenv(testenv.AMQP) == ""
	if err := service.Install(ctx, postgres, rabbitmq, say); err != nil {
		say("%v", err) // Docker may still work
	}
	var (
		wg   sync.WaitGroup
		errs [2]error
	)
	if postgres {
		wg.Go(func() { errs[0] = e.startPostgres(ctx) })
	}
	if rabbitmq {
		wg.Go(func() { errs[1] = e.startRabbitMQ(ctx) })
	}
	wg.Wait()
	err := errors.Join(errs[:]...)
	if errors.Is(err, service.ErrMissing) {
		err = fmt.Errorf("%w\nInstall PostgreSQL and RabbitMQ (Debian: apt-get install postgresql rabbitmq-server; "+
			"macOS: brew install postgresql rabbitmq), or start Docker, or set %s and %s", err, testenv.DatabaseURL, testenv.AMQP)
	}
	return err
}

func (e *environment) startPostgres(ctx context.Context) error {
	p, err := service.StartPostgresWith(ctx, service.PostgresConfig{Bin: e.postgresBin})
	if err != nil {
		return err
	}
	e.add(p.Close, testenv.DatabaseURL+"="+p.URL(), testenv.PostgresBin+"="+p.Tools())
	return nil
}

func (e *environment) startRabbitMQ(ctx context.Context) error {
	r, err := service.StartRabbitMQ(ctx)
	if err != nil {
		return err
	}
	e.add(r.Close, testenv.AMQP+"="+r.URL(), testenv.RabbitMQCtl+"="+r.Ctl())
	return nil
}

func (e *environment) add(closer func() error, vars ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closers = append(e.closers, closer)
	e.vars = append(e.vars, vars...)
}

// addScratch gives the command a temporary directory that is removed with the servers, since a
// killed test cannot remove its files.
func (e *environment) addScratch() error {
	dir, err := os.MkdirTemp("", "boxpair-scratch-")
	if err != nil {
		return err
	}
	e.add(func() error { return os.RemoveAll(dir) }, "TMPDIR="+dir)
	return os.Chmod(dir, 0o711) // servers that run as another user pass through
}

// close stops the servers at once and removes their files.
func (e *environment) close() {
	var wg sync.WaitGroup
	for _, closer := range e.closers {
		wg.Go(func() {
			if err := closer(); err != nil {
				say("%v", err)
			}
		})
	}
	wg.Wait()
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "testenv: "+format+"\n", args...) }
