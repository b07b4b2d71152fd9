package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the name of the instrumentation scope of all spans and instruments.
const Scope = "github.com/boxpair/boxpair/telemetry"

// ErrShutdown is returned by the Watch methods after [Telemetry.Shutdown].
var ErrShutdown = errors.New("telemetry is shut down")

// Config configures a [Telemetry]. The zero value is complete.
type Config struct {
	// TracerProvider makes the tracer. Defaults to the global provider.
	TracerProvider trace.TracerProvider `yaml:"-" env:"-"`
	// MeterProvider makes the instruments. Defaults to the global provider.
	MeterProvider metric.MeterProvider `yaml:"-" env:"-"`

	// System is the attribute messaging.system: the transport, such as "rabbitmq"; at most 255
	// bytes. Defaults to "boxpair".
	System string `yaml:"system" env:"SYSTEM"`
	// StatsTimeout bounds how long one collection of metrics waits for databases. Keep it below the
	// timeout of the reader, which otherwise drops the metrics of the whole service. Defaults to 2
	// s.
	StatsTimeout time.Duration `yaml:"stats_timeout" env:"STATS_TIMEOUT"`

	// Logger receives the errors of reading states for a collection. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

const (
	defaultSystem       = "boxpair"
	maxSystem           = 255
	defaultStatsTimeout = 2 * time.Second
)

func (c Config) withDefaults() (Config, error) {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.System == "" {
		c.System = defaultSystem
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var errs []error
	if len(c.System) > maxSystem || !utf8.ValidString(c.System) || strings.ContainsRune(c.System, 0) {
		errs = append(errs, fmt.Errorf("System: is not UTF-8 text of at most %d bytes without NUL", maxSystem))
	}
	if c.StatsTimeout < 0 {
		errs = append(errs, fmt.Errorf("StatsTimeout: %v is negative", c.StatsTimeout))
	}
	if c.StatsTimeout == 0 {
		c.StatsTimeout = defaultStatsTimeout
	}
	return c, errors.Join(errs...)
}

// Telemetry traces and measures the parts of one service. It is safe for concurrent use.
type Telemetry struct {
	cfg         Config
	tracer      trace.Tracer
	instruments *instruments
	labels      labels // for attempts to publish

	registration metric.Registration
	tasks        sync.WaitGroup // running reads of databases

	mu       sync.Mutex
	shutdown bool
	watched  map[string]bool // by kind and name
	reads    []*source
	counts   []func(o metric.Observer) // observe without I/O
}

// New returns a Telemetry, or an error that joins all mistakes in cfg. New does no I/O. Until
// [Telemetry.Shutdown], every collection of the meter provider observes what the Telemetry watches.
func New(cfg Config) (*Telemetry, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("telemetry config: %w", err)
	}
	meter := cfg.MeterProvider.Meter(Scope, metric.WithSchemaURL(semconv.SchemaURL))
	t := &Telemetry{
		cfg:     cfg,
		tracer:  cfg.TracerProvider.Tracer(Scope, trace.WithSchemaURL(semconv.SchemaURL)),
		labels:  labels{system: semconv.MessagingSystemKey.String(cfg.System), known: make(map[labelKey]attributeSet)},
		watched: make(map[string]bool),
	}
	if t.instruments, err = newInstruments(meter); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	if t.registration, err = meter.RegisterCallback(t.collect, t.instruments.observed()...); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return t, nil
}

// Shutdown ends the watching. It waits for running reads of databases until ctx ends, and then
// returns the cause of the end. Wrapped handlers and publishers go on to work, and to be traced and
// counted. A second call only waits.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	t.mu.Lock()
	first := !t.shutdown
	t.shutdown = true
	t.mu.Unlock()
	var err error
	if first { // without the lock: Unregister waits for a collection, which takes the lock
		err = t.registration.Unregister()
	}
	done := make(chan struct{})
	go func() {
		t.tasks.Wait()
		close(done)
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("telemetry: a read of the state goes on: %w", context.Cause(ctx)))
	}
}
