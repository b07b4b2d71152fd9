package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/testenv"
)

// TestRelayIsMeasuredAndTraced by a process with nothing but settings.
func TestRelayIsMeasuredAndTraced(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	topic := testenv.Name(t)
	r.exec(`UPDATE boxpair.outbox_events SET topic = '` + topic + `'`)
	spans := make(chan string, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		spans <- q.URL.Path + string(body)
	}))
	defer collector.Close()
	t.Run("collected", func(t *testing.T) {
		d := startWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_EXPORTER_OTLP_COMPRESSION=none"},
			"--outbox", r.url, "--amqp", testenv.AMQPURL(t), "--drop-unroutable", "#")
		await(t, func() error {
			_, text := d.get(t, "/metrics")
			for _, want := range []string{`boxpair_outbox_attempts_total{`, `boxpair_outcome="returned"`, "outbox_unsent_count{", "outbox_max_age_seconds{", `service_name="boxpair-relay"`, "go_goroutines ", topic} {
				if !strings.Contains(text, want) {
					return fmt.Errorf("%s is missing in %s", want, text)
				}
			}
			return nil
		})
		await(t, func() error { // the relay reports with its heartbeat
			_, out, _ := call(t, nil, "status", "--topics", "--outbox", r.url)
			if !strings.Contains(out, "\nrelay ") || !regexp.MustCompile(`\n`+topic[:8]+`\S* +working `).MatchString(out) {
				return fmt.Errorf("status --topics: %s", out)
			}
			return nil
		})
		d.stop(t)
	})
	select {
	case got := <-spans:
		if !strings.HasPrefix(got, "/v1/traces") || !strings.Contains(got, topic) {
			t.Errorf("%.300q", got)
		}
	case <-time.After(time.Minute):
		t.Error("no span was sent")
	}
}
