package telemetry_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/transport"
)

// confirming is a sender that confirms at once.
type confirming struct{ transport.Sender }

func (confirming) Send(_ context.Context, _ string, _ *message.Message, done func(transport.Result)) {
	done(transport.Result{Outcome: transport.Confirmed})
}

// BenchmarkSend measures the cost of telemetry per attempt for a relay, whose sends are begun by
// one goroutine.
func BenchmarkSend(b *testing.B) {
	for name, tracer := range map[string]trace.TracerProvider{
		"without an SDK": noop.NewTracerProvider(),
		"not sampled":    sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())),
		"sampled":        sdktrace.NewTracerProvider(),
	} {
		b.Run(name, func(b *testing.B) {
			cfg := telemetry.Config{TracerProvider: tracer, MeterProvider: metricnoop.NewMeterProvider()}
			if name != "without an SDK" {
				cfg.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
			}
			tel, err := telemetry.New(cfg)
			ok(b, err)
			defer func() { ok(b, tel.Shutdown(context.Background())) }()
			sender := tel.Publisher(confirming{}).(transport.Sender)
			msg := message.NewMessage(uuid.NewString(), nil)
			msg.Metadata[transport.MetaStamp] = time.Now().UTC().Format(time.RFC3339Nano)
			msg.Metadata[transport.MetaTraceParent] = someParent
			b.ReportAllocs()
			for b.Loop() {
				sender.Send(b.Context(), "order.placed", msg, func(transport.Result) {})
			}
		})
	}
}
