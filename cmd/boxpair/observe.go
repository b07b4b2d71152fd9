package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/telemetry/prometheus"
)

// flushTimeout bounds the sending of the last spans at the end.
const flushTimeout = 5 * time.Second

// measure sets up metrics and traces of the relays, as far as the settings ask for them.
func (r *relaying) measure(c *crew, log *slog.Logger) error {
	metrics := r.metrics && r.listen != ""
	if !metrics && !r.traces {
		return nil
	}
	config := telemetry.Config{System: "rabbitmq", Logger: log, MeterProvider: noop.NewMeterProvider(), TracerProvider: nooptrace.NewTracerProvider()}
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	if metrics {
		m, err := prometheus.New(prometheus.Config{Service: "boxpair-relay", Version: version, Logger: log})
		if err != nil {
			return fmt.Errorf("--metrics: %w", err)
		}
		c.metrics, config.MeterProvider = m, m.Provider()
		c.ends = append(c.ends, func() { within(m.Shutdown) })
	}
	if r.traces {
		exporter, err := otlptracehttp.New(context.Background())
		if err != nil {
			return fmt.Errorf("--traces: %w", err)
		}
		provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter),
			sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName("boxpair-relay"), semconv.ServiceVersion(version))))
		config.TracerProvider = provider
		c.ends = append(c.ends, func() { within(provider.Shutdown) })
	}
	t, err := telemetry.New(config)
	if err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	c.telemetry = t
	c.ends = append(c.ends, func() { within(t.Shutdown) })
	return nil
}

// within ends a part of the telemetry. Data that cannot be sent in time is lost.
func within(end func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	_ = end(ctx)
}

// measured returns a publisher with instruments and spans, if they are asked for.
func (c *crew) measured(p message.Publisher) message.Publisher {
	if c.telemetry == nil {
		return p
	}
	return c.telemetry.Publisher(p)
}

// watch observes the relay and the outbox with a number.
func (c *crew) watch(i int) error {
	if c.telemetry == nil {
		return nil
	}
	if err := c.telemetry.WatchRelay(c.relays[i].Name(), c.relays[i]); err != nil {
		return err
	}
	return c.telemetry.WatchOutbox(c.outboxes[i], c.stores[i])
}
