package system

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/proxy"
	"github.com/boxpair/boxpair/test/faults/servers"
	"github.com/boxpair/boxpair/transport/amqp"
)

// Config sets how a system differs from a small one.
type Config struct {
	// Dir is the directory of the children's logs. Required.
	Dir string
	// Services are the consumers. Defaults to "stock".
	Services []string
	// Install makes the tables of a database. Defaults to child.Install.
	Install func(ctx context.Context, url string) error
	// NoWire records no messages given to the broker, for runs that are too large. Defaults to
	// false.
	NoWire bool
	// Proxies makes children reach the servers through proxies: Outbox, Inbox and Broker. Defaults
	// to false.
	Proxies bool
	// Unordered means that consumers keep no order. Defaults to false.
	Unordered bool
	// AsTold leaves relays as configured. Otherwise every third relay sends envelopes, and every
	// third sends batches, as during a change of settings. Defaults to false.
	AsTold bool
	// Archive keeps a copy of every event, since a janitor removes events. Defaults to false.
	Archive bool
	// Forgets means that consumers forget dispatch IDs within the run, so that claims are not
	// checked. Defaults to false.
	Forgets bool
	// DrainLimit bounds the time until all is at rest. Defaults to 30 s.
	DrainLimit time.Duration
	// MostHeap is the maximal heap of a child in bytes. Defaults to 256 MiB.
	MostHeap uint64
}

// System is one chain. Its methods may be called concurrently, except for Finish and Close.
type System struct {
	Servers *servers.Servers
	// Outbox, Inbox and Broker are proxies between the children and the servers; nil without
	// Config.Proxies.
	Outbox, Inbox, Broker *proxy.Proxy

	// Topic is the topic of the orders' events.
	Topic string
	// OutboxDB and InboxDB are the names of the databases.
	OutboxDB, InboxDB string

	cfg   Config
	urls  struct{ outbox, inbox, amqp string } // used by children
	pools struct{ outbox, inbox *pgxpool.Pool }

	mu        sync.Mutex
	children  []*child.Process
	reports   map[string]*child.Report
	faults    int
	calmSince time.Time
}

// templates are the databases, by server, from which the databases of systems are copied.
var templates sync.Map

const template = "boxpair_template"

// New makes the databases and the topic of a system. The caller must Close it.
func New(ctx context.Context, s *servers.Servers, cfg Config) (_ *System, err error) {
	if len(cfg.Services) == 0 {
		cfg.Services = []string{"stock"}
	}
	if cfg.DrainLimit == 0 {
		cfg.DrainLimit = 30 * time.Second
	}
	if cfg.MostHeap == 0 {
		cfg.MostHeap = 256 << 20
	}
	name := "t" + token()
	sys := &System{
		Servers: s, Topic: name, OutboxDB: name + "_outbox", InboxDB: name + "_inbox",
		cfg: cfg, reports: make(map[string]*child.Report), calmSince: time.Now(),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sys.Close(context.WithoutCancel(ctx)))
		}
	}()
	err = errors.Join(os.MkdirAll(cfg.Dir, 0o755), sys.databases(ctx), sys.topology())
	for range 3 { // an overloaded node may fail to form a quorum queue
		if err == nil || ctx.Err() != nil {
			break
		}
		if _, refused := errors.AsType[*amqp091.Error](err); !refused {
			break
		}
		err = sys.topology()
	}
	if err != nil {
		return nil, err
	}
	return sys, sys.proxies()
}

// databases copies the template twice.
func (s *System) databases(ctx context.Context) (err error) {
	if err := prepare(ctx, s.Servers.Postgres); err != nil {
		return fmt.Errorf("template of the databases: %w", err)
	}
	from := template
	if s.cfg.Install != nil {
		from = "template0"
	}
	for _, name := range []string{s.OutboxDB, s.InboxDB} {
		if err := s.Servers.Postgres.Create(ctx, name, from); err != nil {
			return err
		}
		if s.cfg.Install == nil {
			continue
		}
		if err := s.cfg.Install(ctx, s.Servers.Postgres.URL(name)); err != nil {
			return err
		}
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	if s.cfg.Archive {
		_, err = s.pools.outbox.Exec(ctx, archive)
	}
	return err
}

// connect opens the pools of the superuser.
func (s *System) connect(ctx context.Context) error {
	for _, db := range []struct {
		name string
		pool **pgxpool.Pool
	}{{s.OutboxDB, &s.pools.outbox}, {s.InboxDB, &s.pools.inbox}} {
		cfg, err := pgxpool.ParseConfig(s.Servers.Postgres.AdminURL(db.name))
		if err != nil {
			return err
		}
		cfg.MaxConns = 4
		// Faults in the server must not stop the observer.
		cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "off"
		cfg.ConnConfig.RuntimeParams["deadlock_timeout"] = "600s"
		if *db.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
			return err
		}
	}
	return nil
}

// FailOver makes another server, with copies of the databases, the system's server. Children reach
// the new server through their proxies from [System.Switch] on.
func (s *System) FailOver(ctx context.Context, to *servers.Postgres) error {
	s.pools.outbox.Close()
	s.pools.inbox.Close()
	s.Servers = &servers.Servers{Postgres: to, RabbitMQ: s.Servers.RabbitMQ}
	return s.connect(ctx)
}

// Switch points the proxies at the server of FailOver.
func (s *System) Switch() error {
	to := s.Servers.Postgres.Addr()
	return errors.Join(s.Outbox.Move(to), s.Inbox.Move(to))
}

// archive copies every insert into the log of the outbox, in its transaction. The roles that insert
// have no privilege on this table.
const archive = `
CREATE TABLE archive (LIKE boxpair.outbox_events);
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO archive SELECT NEW.*; RETURN NULL; END $$;
CREATE TRIGGER keep AFTER INSERT ON boxpair.outbox_events FOR EACH ROW EXECUTE FUNCTION keep()`

// log returns the table with all events of the outbox.
func (s *System) log() string {
	if s.cfg.Archive {
		return "archive"
	}
	return "boxpair.outbox_events"
}

// prepare makes the template, once per server.
func prepare(ctx context.Context, p *servers.Postgres) error {
	made, _ := templates.LoadOrStore(p, sync.OnceValue(func() error {
		ctx := context.WithoutCancel(ctx)
		statements := append(child.CreateLogins(servers.Password),
			"CREATE DATABASE "+template+" TEMPLATE template0 OWNER "+servers.User)
		if err := p.Exec(ctx, statements...); err != nil {
			return err
		}
		return child.Install(ctx, p.URL(template))
	}))
	return made.(func() error)()
}

// topology declares the queues of the services, and a queue that records the wire.
func (s *System) topology() error {
	if s.Servers.RabbitMQ == nil {
		return nil
	}
	for _, service := range s.cfg.Services {
		sub, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: child.Topology(s.Servers.RabbitMQ.URL(), service)})
		if err != nil {
			return err
		}
		if err := errors.Join(sub.SubscribeInitialize(s.Topic), sub.Close()); err != nil {
			return err
		}
	}
	if s.cfg.NoWire {
		return nil
	}
	return s.channel(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(s.wireQueue(), true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
		if err != nil {
			return err
		}
		return ch.QueueBind(s.wireQueue(), "", s.Topic, false, nil)
	})
}

func (s *System) wireQueue() string { return s.Topic + "_wire" }

// channel calls do with a new channel of the broker's administrator.
func (s *System) channel(do func(*amqp091.Channel) error) error {
	conn, err := amqp091.Dial(s.Servers.RabbitMQ.AdminURL())
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return do(ch)
}

// Channel calls do with a new channel of the broker's administrator.
func (s *System) Channel(do func(*amqp091.Channel) error) error { return s.channel(do) }

// proxies starts proxies in front of the servers, if configured.
func (s *System) proxies() (err error) {
	p := s.Servers.Postgres
	s.urls.outbox, s.urls.inbox = p.URL(s.OutboxDB), p.URL(s.InboxDB)
	if s.Servers.RabbitMQ != nil {
		s.urls.amqp = s.Servers.RabbitMQ.URL()
	}
	if !s.cfg.Proxies {
		return nil
	}
	if s.Outbox, s.urls.outbox, err = proxy.Before(s.urls.outbox); err != nil {
		return err
	}
	if s.Inbox, s.urls.inbox, err = proxy.Before(s.urls.inbox); err != nil {
		return err
	}
	s.Broker, s.urls.amqp, err = proxy.Before(s.urls.amqp)
	return err
}

// Start starts a child on the system. The system sets the child's servers, topic and services.
func (s *System) Start(ctx context.Context, cfg child.Config, faults string) (*child.Process, error) {
	cfg.Dir, cfg.Topic, cfg.Services = s.cfg.Dir, s.Topic, s.cfg.Services
	cfg.Outbox, cfg.Inbox, cfg.AMQP = s.urls.outbox, s.urls.inbox, s.urls.amqp
	cfg.Unordered = s.cfg.Unordered
	s.mu.Lock()
	switch started := len(s.children); {
	case s.cfg.AsTold:
	case started%3 == 1:
		cfg.Envelope = true
	case started%3 == 2:
		cfg.Envelope, cfg.BatchSize = true, 8
	}
	s.mu.Unlock()
	p, err := child.Start(ctx, cfg, faults)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children = append(s.children, p)
	return p, nil
}

// Injected records that n faults were certainly injected from outside. The time until all is at
// rest begins now.
func (s *System) Injected(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults += n
	s.calmSince = time.Now()
}

// OutboxPool returns direct connections of the superuser to the producer's database.
func (s *System) OutboxPool() *pgxpool.Pool { return s.pools.outbox }

// InboxPool returns direct connections of the superuser to the consumers' database.
func (s *System) InboxPool() *pgxpool.Pool { return s.pools.inbox }

// Number reads one number from a database.
func Number(ctx context.Context, pool *pgxpool.Pool, query string, args ...any) (n int, err error) {
	err = pool.QueryRow(ctx, query, args...).Scan(&n)
	return n, err
}

// list reads one column.
func list[T any](ctx context.Context, pool *pgxpool.Pool, query string, args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// Close kills the running children and removes databases and queues.
func (s *System) Close(ctx context.Context) error {
	s.mu.Lock()
	children := s.children
	s.children = nil
	s.mu.Unlock()
	for _, p := range children {
		p.Kill()
	}
	var errs []error
	for _, p := range []*proxy.Proxy{s.Outbox, s.Inbox, s.Broker} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	for _, pool := range []*pgxpool.Pool{s.pools.outbox, s.pools.inbox} {
		if pool != nil {
			pool.Close()
		}
	}
	errs = append(errs, s.Servers.Postgres.Drop(ctx, s.OutboxDB), s.Servers.Postgres.Drop(ctx, s.InboxDB))
	if s.Servers.RabbitMQ != nil {
		errs = append(errs, s.channel(func(ch *amqp091.Channel) error {
			var errs []error
			for _, service := range s.cfg.Services {
				_, err := ch.QueueDelete(child.QueueName(s.Topic, service), false, false, false)
				errs = append(errs, err)
			}
			_, err := ch.QueueDelete(s.wireQueue(), false, false, false)
			return errors.Join(append(errs, err, ch.ExchangeDelete(s.Topic, false, false))...)
		}))
	}
	return errors.Join(errs...)
}

// RemoveTopic removes the exchange of a topic that a test declared, and a service's queue on it.
func (s *System) RemoveTopic(topic, service string) error {
	return s.channel(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDelete(child.QueueName(topic, service), false, false, false)
		return errors.Join(err, ch.ExchangeDelete(topic, false, false))
	})
}

func token() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
