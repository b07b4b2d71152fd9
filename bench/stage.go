package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

// payload is 512 bytes, like a small order event.
var payload = []byte(`{"order":"` + strings.Repeat("x", 500) + `"}`)

// stage is the environment of a measured variant: servers, the number of messages, and clean-ups.
type stage struct {
	databaseURL, amqpURL string
	n                    int
	quick                bool
	scale                float64 // of what surrounds the messages; 0 is all of it
	keep                 bool    // leave what later measurements share
	profile              string  // a directory, or ""
	connections          int     // of a pool; defaults to 40
	name                 string  // of the variant, for files

	meter  meter
	wire   wire
	result *Result
	beside int // delivered events that the log holds
	steps  map[string]float64
	undo   []func()
}

// spend begins a step of a measurement. The step ends when done is called.
func (s *stage) spend(on string) (done func()) {
	begun := time.Now()
	return func() {
		if s.steps == nil {
			s.steps = map[string]float64{}
		}
		s.steps[on] = significant(s.steps[on] + time.Since(begun).Seconds())
	}
}

// scaled returns the part of n for a run of fewer messages, and never more than n.
func (s *stage) scaled(n int) int {
	if s.scale <= 0 || s.scale >= 1 {
		return n
	}
	return max(1, int(float64(n)*s.scale))
}

// later schedules fn for the end of the variant's measurement; the last scheduled function runs
// first.
func (s *stage) later(fn func()) { s.undo = append(s.undo, fn) }

func (s *stage) close() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
	s.undo = nil
}

// measure prepares and measures a variant.
func (s *stage) measure(ctx context.Context, scenarioName string, v variant) (result Result, err error) {
	defer func() {
		done := s.spend("tidy")
		s.close()
		done()
		result.Steps = s.steps
	}()
	s.meter = meter{
		postgres: serverAt(s.databaseURL, "5432"), rabbitMQ: serverAt(s.amqpURL, "5672"), wire: &s.wire, databaseURL: s.databaseURL,
	}
	done := s.spend("checkpoint")
	if err := checkpoint(ctx, s.databaseURL); err != nil {
		return Result{}, err
	}
	done()
	if err := v.measure(ctx, s); err != nil {
		return Result{}, err
	}
	if s.result == nil {
		return Result{}, errors.New("nothing was measured")
	}
	s.result.Scenario, s.result.Variant = scenarioName, v.name
	if s.beside > 0 {
		s.extra("retained", float64(s.beside))
	}
	return *s.result, nil
}

// checkpoint makes the server write out the data of earlier measurements, so that no checkpoint
// falls into this one.
func checkpoint(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", hidden(err))
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("the role in DATABASE_URL must be allowed to CHECKPOINT: %w", err)
	}
	return nil
}

// timed measures fn, which returns the number of processed messages.
func (s *stage) timed(ctx context.Context, fn func() (int, error)) error {
	done := s.spend("meter")
	runtime.GC()
	begin, err := s.meter.begin(ctx)
	if err != nil {
		return err
	}
	stop, err := s.startProfile()
	if err != nil {
		return err
	}
	forgetPeak()
	done()
	start := time.Now()
	n, err := fn()
	took := time.Since(start)
	defer s.spend("meter")()
	stop()
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("no message was done")
	}
	end, err := s.meter.end(ctx)
	if err != nil {
		return err
	}
	r := difference(begin, end, n, took)
	s.result = &r
	return nil
}

// startProfile writes a CPU profile of the measured part, if requested.
func (s *stage) startProfile() (stop func(), err error) {
	if s.profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(filepath.Join(s.profile, s.name+".pprof"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// extra records a figure that only this scenario has.
func (s *stage) extra(name string, value float64) {
	if s.result.Extra == nil {
		s.result.Extra = map[string]float64{}
	}
	s.result.Extra[name] = value
}

// hidden removes from an error of a connection the parts that could show a password.
func hidden(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return errors.New(pgErr.Message)
	}
	return errors.New("connection failed")
}

// schema makes an empty schema, and a pool for the schema that counts its traffic.
func (s *stage) schema(ctx context.Context) (*pgxpool.Pool, string, error) {
	name := "bench_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	pool, err := s.pool(ctx, name)
	if err != nil {
		return nil, "", err
	}
	if _, err := pool.Exec(ctx, `CREATE SCHEMA `+name); err != nil {
		return nil, "", err
	}
	s.later(func() { _, _ = pool.Exec(context.WithoutCancel(ctx), `DROP SCHEMA `+name+` CASCADE`) })
	return pool, name, nil
}

// pool returns a pool with one schema as search path, or none if schema is "".
func (s *stage) pool(ctx context.Context, schema string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(s.databaseURL)
	if err != nil {
		return nil, errors.New("DATABASE_URL is not valid")
	}
	cfg.MaxConns = int32(cmp.Or(s.connections, 40))
	if schema != "" {
		cfg.ConnConfig.RuntimeParams["search_path"] = schema
	}
	cfg.ConnConfig.AfterNetConnect = s.wire.count
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, hidden(err)
	}
	s.later(pool.Close)
	return pool, nil
}

// warm opens n connections of a pool, so that no connection is opened during the measurement.
func (s *stage) warm(ctx context.Context, pool *pgxpool.Pool, n int) error {
	defer s.spend("connections")()
	conns := make([]*pgxpool.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			c.Release()
		}
	}()
	for range n {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return hidden(err)
		}
		conns = append(conns, c)
	}
	return nil
}

// businessTables are the service's tables besides an outbox and an inbox.
const businessTables = `CREATE TABLE orders (id uuid PRIMARY KEY, body bytea); CREATE TABLE effects (id uuid, body bytea)`

// store makes an outbox, an inbox, orders and effects in a schema of their own, and returns its name, too.
func (s *stage) store(ctx context.Context) (*postgres.Store, *pgxpool.Pool, string, error) {
	pool, name, err := s.schema(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	store, err := s.migrated(ctx, pool, name)
	return store, pool, name, err
}

func (s *stage) migrated(ctx context.Context, pool *pgxpool.Pool, schema string) (*postgres.Store, error) {
	defer s.spend("tables")()
	cfg := postgres.Config{Schema: schema}
	if _, err := postgres.Migrate(ctx, pool, cfg); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, businessTables); err != nil {
		return nil, err
	}
	return postgres.New(pool, cfg)
}

// outbox returns the outbox of a store, and an empty classic queue for its events.
func (s *stage) outbox(store *postgres.Store) (*producer.Outbox[pgx.Tx], *queues, error) {
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return nil, nil, err
	}
	q, err := s.queues("classic", 1)
	return outbox, q, err
}

// queues are queues of one type, and a connection to their broker.
type queues struct {
	conn  *amqp.Connection
	ch    *amqp.Channel
	kind  string
	names []string
}

// queues declares empty queues: classic or quorum.
func (s *stage) queues(kind string, n int) (*queues, error) {
	defer s.spend("queues")()
	conn, err := amqp.Dial(s.amqpURL)
	if err != nil {
		return nil, errors.New("connect to RabbitMQ failed") // the cause may show the password
	}
	q := &queues{conn: conn, kind: kind}
	s.later(func() {
		for _, name := range q.names {
			_, _ = q.ch.QueueDelete(name, false, false, false)
		}
		_ = conn.Close()
	})
	if q.ch, err = conn.Channel(); err != nil {
		return nil, err
	}
	prefix := "bench-" + uuid.NewString()[:8]
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if _, err := q.ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": kind}); err != nil {
			return nil, err
		}
		q.names = append(q.names, name)
	}
	return q, nil
}
