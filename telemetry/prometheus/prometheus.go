// Package prometheus serves the metrics of package telemetry, and of everything else that measures
// with OpenTelemetry in the process, to a Prometheus server:
//
//	metrics, err := prometheus.New(prometheus.Config{Service: "orders"})
//	tel, err := telemetry.New(telemetry.Config{MeterProvider: metrics.Provider(), System: "rabbitmq"})
//
//	mux.Handle("GET /metrics", metrics)
//
// The package is for a service without a meter provider of its own. A service that has one adds a
// reader to it instead, and exports traces by the tracer provider that it gives to telemetry.Config.
//
// Names are the names of the instruments with underscores, the unit and, for a counter, _total:
// boxpair.outbox.age becomes boxpair_outbox_age_seconds. The dashboards in examples/grafana and the
// rules in examples/prometheus use these names.
package prometheus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// maxScrapes is how many requests are answered at once. Each one reads the state of the watched
// databases.
const maxScrapes = 4

// Config configures a [Metrics]. The zero value is complete.
type Config struct {
	// Service is the name of the service, service_name of the metric target_info. Defaults to the
	// name of the program. At most 255 bytes.
	Service string `yaml:"service" env:"SERVICE"`
	// Version is the version of the service, service_version of target_info; at most 255 bytes.
	// Defaults to none.
	Version string `yaml:"version" env:"VERSION"`
	// OnlyInstruments leaves out the metrics of the process and of the Go runtime, process_… and
	// go_…. Defaults to false.
	OnlyInstruments bool `yaml:"only_instruments" env:"ONLY_INSTRUMENTS"`
	// Logger receives the errors of scrapes. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

// Metrics is a meter provider, and the handler that serves what it measures. It is safe for
// concurrent use, and starts no goroutine.
type Metrics struct {
	provider *sdkmetric.MeterProvider
	handler  http.Handler
}

// maxText is the most bytes of a name or version.
const maxText = 255

// withDefaults returns c with its zero fields filled in, or an error that joins all mistakes in c.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	for _, field := range []struct{ name, value string }{{"Service", c.Service}, {"Version", c.Version}} {
		if len(field.value) > maxText || !utf8.ValidString(field.value) || strings.ContainsRune(field.value, 0) {
			errs = append(errs, fmt.Errorf("%s: is not UTF-8 text of at most %d bytes without NUL", field.name, maxText))
		}
	}
	if c.Service == "" {
		c.Service = filepath.Base(os.Args[0])
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// New returns a Metrics with a registry of its own, or an error that joins all mistakes in cfg. New
// does no I/O.
func New(cfg Config) (*Metrics, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("prometheus config: %w", err)
	}
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(),
		exporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	if !cfg.OnlyInstruments {
		for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
			if err := registry.Register(c); err != nil {
				return nil, fmt.Errorf("prometheus: %w", err)
			}
		}
	}
	attributes := resource.NewSchemaless(semconv.ServiceName(cfg.Service))
	if cfg.Version != "" {
		attributes = resource.NewSchemaless(semconv.ServiceName(cfg.Service), semconv.ServiceVersion(cfg.Version))
	}
	return &Metrics{
		provider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(attributes)),
		handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{
			ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelError), ErrorHandling: promhttp.ContinueOnError,
			MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: true,
		}),
	}, nil
}

// Provider returns the meter provider: telemetry.Config.MeterProvider, and perhaps the global one.
func (m *Metrics) Provider() *sdkmetric.MeterProvider { return m.provider }

// ServeHTTP answers a scrape with the metrics of now, in the text format of Prometheus or in
// OpenMetrics, as the request asks. It reads the state of each watched database, for at most
// telemetry.Config.StatsTimeout. Of more than four requests at once, further ones are answered with
// 503. A metric that cannot be read is missing in the answer. ServeHTTP asks for no password: serve it
// only to your monitoring.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }

// Shutdown ends the measuring. Later scrapes have no instruments. Call it after
// telemetry.Telemetry.Shutdown.
func (m *Metrics) Shutdown(ctx context.Context) error {
	if err := m.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("prometheus: %w", err)
	}
	return nil
}
