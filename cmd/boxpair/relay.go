package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/transport/amqp"
	"github.com/boxpair/boxpair/transport/signature"
)

var relayCommand = command{
	name:    "relay",
	summary: "publish the events of an outbox to RabbitMQ, until stopped",
	group:   running,
	details: `Publishes the events of outboxes to RabbitMQ, each key in order, until SIGTERM or an interrupt; then the
relay waits for outstanding confirms and gives its shards back. Any number of relays may run on one
outbox: they share the work. The relay survives outages of the database and the broker. Delivered
events are removed after --retention.

    boxpair relay --outbox postgres://relay@orders/shop --amqp amqps://relay@rabbit/ --listen :8080

With --listen, GET /healthz answers 200 while the relay runs. GET /readyz answers 200 if database and
broker answer and every route works, and otherwise 503 with the problems as a JSON object. GET /metrics
is for Prometheus. With --dashboard, /ui/ is the dashboard of the outboxes, as boxpair ui serves it: without
--token it answers this machine only, and a kubectl port-forward.`,
	define: defineRelay,
}

// relaying holds the settings of relay.
type relaying struct {
	outboxes          []target
	places            places
	broker            string
	hosts             []string
	routes            []route
	exchanges, listen string
	topology          amqp.Topology
	partitions        int
	cloudEvents       bool
	competing         bool
	envelope          bool
	allHeaders        bool
	batchSize         int
	config            relay.Config
	logFormat         string
	logLevel          string
	janitor           bool
	metrics, traces   bool
	retention         time.Duration
	archive           producer.ArchiveSink
	dashboard         bool
	looks             looks // of the dashboard
	unreadyAge        time.Duration
	unreadyDead       int
}

// route is a broker for some topics.
type route struct {
	name, url string
	topics    []string
}

func defineRelay(s *settings) func(context.Context, *process) (int, error) {
	r := newRelaying(s)
	r.serving(s)
	return r.run
}

// newRelaying declares the settings of relay.
func newRelaying(s *settings) *relaying {
	r := &relaying{exchanges: "topic", janitor: true, metrics: true, traces: s.getenv("OTEL_EXPORTER_OTLP_ENDPOINT")+s.getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""}
	c := &r.config
	s.urls(&r.outboxes, "outbox", "the database of an outbox. May be given several times: one process then looks after several outboxes or tenants.")
	s.add("amqp", envOf("amqp")+"_URL", "URL", "the RabbitMQ server: amqp://user:password@host:5672/vhost, or amqps:// for TLS.", false, r.setBroker(s))
	s.add("amqp-hosts", envOf("amqp")+"_HOSTS", "HOSTS", "the nodes of the cluster, separated by commas, in place of the host in --amqp, as PublisherConfig.Hosts:\n"+
		"rabbit1,rabbit2:5673. Defaults to none.", false, r.setHosts)
	s.add("route", envOf("route"), "NAME=TOPICS@URL", "another RabbitMQ server for some topics, as Config.Downstreams: analytics=audit.#,metric.*@amqp://host/vhost.\n"+
		"Its name is that of boxpair pause --downstream. May be given several times. Defaults to none.", true, r.addRoute(s))
	s.add("signing-key", envOf("signing-key"), "ID=FILE", "a key with which every message is signed, as Config.Signer: its ID and the file of its secret, at least 32 bytes.\n"+
		"Defaults to none.", false, r.setSigner)
	s.add("exchanges", envOf("exchanges"), "KIND", "the target of a topic: topic (the fanout exchange of the topic's name), queue (the queue of the\n"+
		"topic's name), or exchange:NAME (that topic exchange, with the topic as routing key). Defaults to topic.", false, r.setExchanges)
	s.add("declare", envOf("declare"), "WHO", "all: the relay declares exchanges; check: the relay checks that exchanges exist; none: neither.\nDefaults to all.",
		false, r.setDeclare)
	s.count(&r.partitions, "partitions", "the number of queues over which each consumer spreads a topic, as PublisherConfig.Partitions; at most 64.\n"+
		"Defaults to none: topics are not partitioned.")
	s.on(&r.allHeaders, "all-headers", "send a header for each name of the metadata, as PublisherConfig.AllHeaders: for consumers that read with\n"+
		"watermill-amqp's subscriber.")
	s.on(&r.envelope, "envelope", "send the metadata in the body instead of headers, as PublisherConfig.Envelope: for consumers of this library only.")
	s.count(&r.batchSize, "batch-size", "the maximal number of events in one AMQP message, as PublisherConfig.BatchSize. Needs --envelope. Defaults to 1.")
	s.on(&r.competing, "competing-consumers", "declare queues for consumers with CompetingConsumers, as PublisherConfig.CompetingConsumers.")
	s.on(&r.cloudEvents, "cloud-events", "add the attributes of CloudEvents 1.0 to every message, as PublisherConfig.CloudEvents.")
	s.text(&r.listen, "listen", "ADDRESS", "the address of /healthz, /readyz, /metrics and --dashboard, such as 127.0.0.1:8080. Defaults to none.")
	s.on(&r.metrics, "metrics", "serve metrics for Prometheus at /metrics of --listen. Defaults to true.")
	s.on(&r.traces, "traces", "send a span for each published event by OTLP over HTTP; the variables OTEL_EXPORTER_OTLP_… of OpenTelemetry\nset it up. Defaults to true if one of OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set.")
	s.text(&c.Name, "name", "NAME", "the relay's name, unique among the relays of the outbox. Defaults to a new name at every start.")
	s.duration(&c.LeaseTTL, "lease", "how long the shards of a dead relay stand still. Defaults to 10s.")
	s.count(&c.Window, "window", "the maximal number of unconfirmed events. Defaults to 1000.")
	s.count(&c.MaxAttempts, "max-attempts", "the number of counted attempts after which an event is dead. Defaults to 10.")
	s.add("drop-unroutable", envOf("drop-unroutable"), "TOPICS", "patterns of topics, separated by commas, that may have nobody who listens: their events count as delivered,\n"+
		"as Config.DropUnroutable. Defaults to none.", false, r.setDropUnroutable)
	s.duration(&c.Backoff.Initial, "backoff-initial", "the upper bound of the first wait after a failed attempt. Defaults to 1s.")
	s.duration(&c.Backoff.Max, "backoff-max", "the upper bound of all waits. Defaults to 5m.")
	s.on(&c.HoldDeadKeys, "hold-dead-keys", "keep the events of a key waiting behind a dead event.")
	s.duration(&c.PollMax, "poll", "the time between two polls of an empty queue. Defaults to 500ms.")
	s.on(&c.PollOnly, "poll-only", "do not listen for wake-ups, which need a connection of their own.")
	s.duration(&c.SendTimeout, "send-timeout", "how long the broker may take to confirm. Defaults to 30s.")
	s.duration(&c.RouteGrace, "route-grace", "how long a route may go without success before an error is logged. Defaults to 1m.")
	s.duration(&c.ShutdownTimeout, "shutdown-timeout", "how long a stopping relay waits for confirms. Defaults to 15s.")
	s.on(&r.janitor, "janitor", "remove events after --retention. --janitor=false leaves the removal to another process, for example\n"+
		"if the relay's role may not delete events. Defaults to true.")
	s.duration(&r.retention, "retention", "how long delivered events are kept: for replay, and to recognise an event that is written again.\nDefaults to 7d.")
	archiveSetting(s, &r.archive)
	s.choice(&r.logFormat, "log-format", "FORMAT", "text or json. Defaults to text.", "text", "json")
	s.choice(&r.logLevel, "log-level", "LEVEL", "debug, info, warn or error. debug writes a line for each published event. Defaults to info.", "debug", "info", "warn", "error")
	r.places.define(s)
	return r
}

func (r *relaying) setDropUnroutable(text string) error {
	r.config.DropUnroutable = strings.Split(text, ",")
	return nil
}

func (r *relaying) setBroker(s *settings) func(string) error {
	return func(text string) error {
		s.secrets.hide(text)
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" || u.Host == "" {
			return errors.New("want amqp://user:password@host:port/vhost or amqps://…, " +
				"with reserved characters of user and password percent-encoded")
		}
		r.broker = text
		return nil
	}
}

// addRoute adds a broker for some topics.
func (r *relaying) addRoute(s *settings) func(string) error {
	return func(text string) error {
		s.secrets.hide(text)
		name, rest, named := strings.Cut(text, "=")
		list, broker, found := strings.Cut(rest, "@")
		u, err := url.Parse(broker)
		if !named || !found || name == "" || list == "" || err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" || u.Host == "" {
			return errors.New("want NAME=TOPICS@amqp://user:password@host:port/vhost, with TOPICS such as audit.#,metric.*")
		}
		r.routes = append(r.routes, route{name, broker, strings.Split(list, ",")})
		return nil
	}
}

func (r *relaying) setSigner(text string) error {
	id, file, found := strings.Cut(text, "=")
	if !found {
		return errors.New("want ID=FILE")
	}
	secret, err := os.ReadFile(file) //nolint:gosec // the operator names the file
	if err != nil {
		return err
	}
	r.config.Signer, err = signature.NewSigner(signature.Key{ID: id, Secret: bytes.TrimSpace(secret)})
	return err
}

func (r *relaying) setHosts(text string) error {
	r.hosts = strings.Split(text, ",")
	return nil
}

func (r *relaying) setExchanges(text string) error {
	name, is := strings.CutPrefix(text, "exchange:")
	if text != "topic" && text != "queue" && (!is || name == "") {
		return errors.New("want topic, queue or exchange:NAME")
	}
	r.exchanges = text
	return nil
}

func (r *relaying) setDeclare(text string) error {
	topology, known := map[string]amqp.Topology{"all": amqp.Declare, "check": amqp.Passive, "none": amqp.NoTopology}[text]
	if !known {
		return errors.New("want all, check or none")
	}
	r.topology = topology
	return nil
}

// check checks the settings against each other.
func (r *relaying) check() error {
	var errs []error
	if len(r.outboxes) == 0 {
		errs = append(errs, fmt.Errorf("--outbox (or %s_URL): is missing", envOf("outbox")))
	}
	if r.broker == "" {
		errs = append(errs, fmt.Errorf("--amqp (or %s_URL): is missing", envOf("amqp")))
	}
	if r.partitions > idgen.Shards {
		errs = append(errs, fmt.Errorf("--partitions (or %s): %d is more than %d", envOf("partitions"), r.partitions, idgen.Shards))
	}
	if r.allHeaders && r.envelope {
		errs = append(errs, fmt.Errorf("--all-headers (or %s): excludes --envelope", envOf("all-headers")))
	}
	if r.batchSize > 1 && !r.envelope {
		errs = append(errs, fmt.Errorf("--batch-size (or %s): batches need --envelope", envOf("batch-size")))
	}
	if r.archive != nil && !r.janitor {
		errs = append(errs, fmt.Errorf("--archive (or %s): --janitor=false removes nothing, so nothing is archived", envOf("archive")))
	}
	return errors.Join(append(errs, r.checkServing())...)
}

// logger returns a log in a format, from a level on.
func logger(out io.Writer, format, level string) *slog.Logger {
	options := &slog.HandlerOptions{}
	var from slog.Level
	if from.UnmarshalText([]byte(level)) == nil { // "" is no level
		options.Level = from
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(out, options))
	}
	return slog.New(slog.NewTextHandler(out, options))
}

// connections is the maximal number of connections of a relay to its database.
const connections = 8

// open opens an outbox. No I/O happens before the first use, except for SQLite.
func (r *relaying) open(ctx context.Context, t *target) (relayedStore, func(), error) {
	switch {
	case t.server != nil:
		store, db, end, err := openMySQL(t, &r.places)
		if err == nil {
			db.SetMaxOpenConns(connections)
		}
		return store, end, err
	case t.pool == nil:
		return openSQLite(t, &r.places)
	}
	t.pool.MaxConns = connections
	store, _, end, err := openPostgres(context.WithoutCancel(ctx), t, &r.places) // the store is closed after the relay has ended
	return store, end, err
}

// relayedStore is the part of a store that the relay and its janitor need.
type relayedStore interface {
	outbox.RelayStore
	outbox.JanitorStore
	telemetry.OutboxStats
	CheckSchema(ctx context.Context) error
}

// post is a publisher of the relays.
type post struct {
	*amqp.Publisher

	name string // for the health
}

// crew is a relay for each outbox. All send through the same publishers.
type crew struct {
	relays   []*relay.Relay
	stores   []relayedStore
	outboxes []string // the names of the databases
	posts    []post
	ends     []func() // in reverse order

	telemetry *telemetry.Telemetry // nil without metrics and traces
	metrics   http.Handler         // nil without metrics
}

// end closes the publishers and the databases. Unconfirmed events are sent again.
func (c *crew) end() {
	for _, end := range slices.Backward(c.ends) {
		end()
	}
}

// muster makes the relays, which do not run yet. The caller calls end of the crew, also after an
// error.
func (r *relaying) muster(ctx context.Context, log *slog.Logger) (*crew, error) {
	c := &crew{}
	add := func(name, url string, hosts []string) (*amqp.Publisher, error) {
		p, err := r.publisher(log, url, hosts)
		if err == nil {
			c.posts = append(c.posts, post{p, name})
			c.ends = append(c.ends, func() { _ = p.Close() })
		}
		return p, err
	}
	if err := r.measure(c, log); err != nil { //nolint:contextcheck // the last spans are sent after the end of ctx
		return c, err
	}
	publisher, err := add("broker", r.broker, r.hosts)
	if err != nil {
		return c, fmt.Errorf("--amqp: %w", err)
	}
	r.config.Logger = log
	for i := range r.routes {
		way := &r.routes[i]
		p, err := add("broker of route "+way.name, way.url, nil)
		if err != nil {
			return c, fmt.Errorf("--route %s: %w", way.name, err)
		}
		r.config.Downstreams = append(r.config.Downstreams, relay.Downstream{Name: way.name, Publisher: c.measured(p), Topics: way.topics})
	}
	for i := range r.outboxes {
		t := &r.outboxes[i]
		store, end, err := r.open(ctx, t)
		if err != nil {
			return c, fmt.Errorf("--outbox %s: %w", t.name, err)
		}
		c.ends = append(c.ends, end)
		one, err := relay.NewStandalone(store, c.measured(publisher), r.config)
		if err != nil {
			return c, err
		}
		c.relays, c.stores, c.outboxes = append(c.relays, one), append(c.stores, store), append(c.outboxes, r.places.label(t))
		if err := c.watch(i); err != nil {
			return c, err
		}
	}
	return c, nil
}

// topologyOf returns watermill-amqp's configuration for --exchanges. A publisher passes no consumer.
func (r *relaying) topologyOf(url, consumer string) wamqp.Config {
	switch name, is := strings.CutPrefix(r.exchanges, "exchange:"); {
	case is:
		return amqp.TopicExchange(url, name, consumer)
	case r.exchanges == "queue":
		return amqp.DurableQueue(url)
	}
	return amqp.DurablePubSub(url, consumer)
}

func (r *relaying) publisher(log *slog.Logger, url string, hosts []string) (*amqp.Publisher, error) {
	return amqp.NewPublisher(amqp.PublisherConfig{
		AMQP: r.topologyOf(url, ""), Hosts: hosts, Topology: r.topology, Partitions: r.partitions, CloudEvents: r.cloudEvents, CompetingConsumers: r.competing, AllHeaders: r.allHeaders, Envelope: r.envelope, BatchSize: r.batchSize,
		ConfirmTimeout: r.config.SendTimeout, Logger: log,
	})
}

func (r *relaying) run(ctx context.Context, p *process) (int, error) {
	if err := r.check(); err != nil {
		return exitFailed, err
	}
	log := logger(p.stderr, r.logFormat, r.logLevel)
	c, err := r.muster(ctx, log)
	defer c.end()
	if err != nil {
		return exitFailed, err
	}
	janitors, err := r.janitors(c, log)
	if err != nil {
		return exitFailed, fmt.Errorf("--retention: %w", err)
	}
	stop, err := r.serve(ctx, log, c)
	if err != nil {
		return exitFailed, err
	}
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var janitorial, sending sync.WaitGroup
	for _, one := range janitors {
		janitorial.Go(func() { _ = one.Run(ctx) }) // ends with ctx; errors are logged
	}
	failed := make([]error, len(c.relays))
	for i, one := range c.relays {
		sending.Go(func() {
			log.InfoContext(ctx, "relay starts", "relay", one.Name(), "outbox", c.outboxes[i])
			failed[i] = one.Run(ctx)
			cancel() // it ends with ctx only
			log.InfoContext(context.WithoutCancel(ctx), "relay has ended", "relay", one.Name())
		})
	}
	sending.Wait()
	janitorial.Wait()
	if err := errors.Join(failed...); err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// janitors returns a janitor for each outbox, unless they are switched off.
func (r *relaying) janitors(c *crew, log *slog.Logger) ([]*producer.Janitor, error) {
	if !r.janitor {
		return nil, nil
	}
	list := make([]*producer.Janitor, len(c.stores))
	for i, store := range c.stores {
		var err error
		if list[i], err = producer.NewJanitor(store, producer.JanitorConfig{Retention: r.retention, Archive: r.archive, Logger: log}); err != nil {
			return nil, err
		}
		if c.telemetry != nil {
			if err := c.telemetry.WatchJanitor(c.outboxes[i], list[i]); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}
