package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/store/postgres"
)

// variable holds the configuration of a child, as JSON.
const variable = "BOXPAIR_CHILD"

// Main runs this process as a child if it was started as one; then Main does not return.
func Main() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var cfg Config
	err := json.Unmarshal([]byte(text), &cfg)
	if err == nil {
		cfg, err = cfg.withDefaults()
	}
	if err == nil {
		err = run(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// service is the inside of a child.
type service struct {
	cfg Config
	log *slog.Logger
	out sync.Mutex

	peaks
	parts []part
}

// part is one running role.
type part struct {
	name string
	// run works until ctx ends.
	run func(ctx context.Context) error
	// ready is closed when the role has begun; nil means at once.
	ready <-chan struct{}
	// tell completes a sample.
	tell func(*Report)
}

// run works until SIGTERM, then ends everything in order and reports.
func run(cfg Config) error {
	runtime.GOMAXPROCS(cfg.GOMAXPROCS)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Signals are received to the very end: a second SIGTERM must not cut the report off.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println("listens")
	go func() {
		<-signals
		cancel()
	}()
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGUSR1) // sent to a waiting fault that may be over already
	go endWithParent()
	before := goleak.IgnoreCurrent() // goroutines of the process itself

	s, closeLog, err := newService(cfg)
	if err != nil {
		return err
	}
	err = errors.Join(s.work(ctx), closeLog())
	s.say("report", s.report(leaked(before)))
	return err
}

// leaked names the goroutines that are left and were not in before.
func leaked(before goleak.Option) string {
	if err := goleak.Find(before); err != nil {
		return err.Error()
	}
	return ""
}

// endWithParent ends the process when its parent has ended.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(3)
}

func newService(cfg Config) (*service, func() error, error) {
	f, err := os.OpenFile(filepath.Join(cfg.Dir, cfg.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	level := &slog.HandlerOptions{Level: slog.LevelDebug - 4}
	if cfg.Quiet {
		level.Level = slog.LevelWarn
	}
	return &service{cfg: cfg, log: slog.New(slog.NewTextHandler(f, level))}, f.Close, nil
}

// say sends the parent a message, on a line of its own.
func (s *service) say(what string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		text = []byte(`{}`)
	}
	s.out.Lock()
	defer s.out.Unlock()
	_, _ = fmt.Printf("%s %s\n", what, text)
}

// work runs the roles until ctx ends. Consumers start first, so that their queues exist before an
// event is sent.
func (s *service) work(ctx context.Context) error {
	closers, err := s.build(ctx)
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i]()
		}
	}()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(s.parts))
	for i, p := range s.parts {
		wg.Go(func() {
			if errs[i] = p.run(ctx); errs[i] != nil {
				s.log.Error("a part ended", "part", p.name, "error", errs[i])
				cancel()
			}
		})
		if p.ready != nil {
			select {
			case <-p.ready:
			case <-ctx.Done():
			}
		}
	}
	s.say("ready", nil)
	s.sample(ctx)
	wg.Wait()
	return errors.Join(errs...)
}

// build makes the parts of the roles. The closers are called in reverse order.
func (s *service) build(ctx context.Context) (closers []func(), err error) {
	c := &s.cfg
	if c.has(Consumer) {
		store, closePool, err := s.open(ctx, c.Inbox, Consumer.Login())
		if err != nil {
			return closers, err
		}
		closers = append(closers, closePool)
		for _, name := range c.Services {
			more, err := s.consumer(store, name)
			closers = append(closers, more...)
			if err != nil {
				return closers, err
			}
		}
	}
	if !c.has(Producer) && !c.has(Relay) && !c.has(Janitor) {
		return closers, nil
	}
	store, closePool, err := s.open(ctx, c.Outbox, c.outboxLogin())
	if err != nil {
		return closers, err
	}
	closers = append(closers, closePool)
	more, err := s.outbox(store)
	return append(closers, more...), err
}

// open returns a store on a database, for a user. The database need not answer.
func (s *service) open(ctx context.Context, url, user string) (*store, func(), error) {
	url, err := loggedIn(url, user)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = s.cfg.Name
	cfg.MaxConns = int32(max(8, s.cfg.InFlight/2) + s.cfg.Writers)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	st, err := postgres.New(pool, postgres.Config{})
	return &store{st, pool}, pool.Close, err
}

// store is a store with its pool.
type store struct {
	*postgres.Store
	pool *pgxpool.Pool
}
