package prometheus_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/telemetry/prometheus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// scrape returns what a Prometheus server gets.
func scrape(t testing.TB, handler http.Handler, accept string) (status int, contentType, body string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Result().Body)
	ok(t, err)
	return w.Code, w.Header().Get("Content-Type"), string(text)
}

// waiting is an outbox with waiting events.
type waiting struct{ begun, free chan struct{} }

func (w waiting) Stats(context.Context) (outbox.Stats, error) {
	if w.begun != nil {
		w.begun <- struct{}{}
		<-w.free
	}
	return outbox.Stats{Pending: 3, Retrying: 1, OldestPending: 90 * time.Second}, nil
}

func TestScrapeHasTheInstrumentsOfTheService(t *testing.T) {
	t.Parallel()
	metrics, err := prometheus.New(prometheus.Config{Service: "orders", Version: "1.2.3"})
	ok(t, err)
	tel, err := telemetry.New(telemetry.Config{MeterProvider: metrics.Provider()})
	ok(t, err)
	ok(t, tel.WatchOutbox("shop", waiting{}))
	for accept, kind := range map[string]string{
		"text/plain": "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0": "application/openmetrics-text; version=1.0.0",
	} {
		status, contentType, text := scrape(t, metrics, accept)
		if status != http.StatusOK || !strings.HasPrefix(contentType, kind) {
			t.Errorf("%d, %s, want %s", status, contentType, kind)
		}
		for _, line := range []string{
			`outbox_unsent_count{boxpair_outbox="shop"} 4`, `outbox_max_age_seconds{boxpair_outbox="shop"} 90`,
			`boxpair_outbox_age_seconds{boxpair_outbox="shop"} 90`, `target_info{service_name="orders",service_version="1.2.3"} 1`, "\ngo_goroutines ",
			"\nprocess_start_time_seconds ",
		} {
			if !strings.Contains(text, line) {
				t.Errorf("%s: no %s in:\n%s", accept, line, text)
			}
		}
	}
	ok(t, tel.Shutdown(t.Context()))
	ok(t, metrics.Shutdown(t.Context()))
	if _, _, text := scrape(t, metrics, "text/plain"); strings.Contains(text, "boxpair_") {
		t.Errorf("after the end:\n%s", text)
	}
}

func TestOnlyInstruments(t *testing.T) {
	t.Parallel()
	metrics, err := prometheus.New(prometheus.Config{OnlyInstruments: true})
	ok(t, err)
	counter, err := metrics.Provider().Meter("test").Int64Counter("orders")
	ok(t, err)
	counter.Add(t.Context(), 2)
	_, _, text := scrape(t, metrics, "text/plain")
	if !strings.Contains(text, "\norders_total 2\n") || !strings.Contains(text, `service_name="prometheus.test"`) ||
		strings.Contains(text, "go_") || strings.Contains(text, "process_") {
		t.Errorf("got:\n%s", text)
	}
}

func TestFewScrapesAreAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	metrics, err := prometheus.New(prometheus.Config{OnlyInstruments: true})
	ok(t, err)
	tel, err := telemetry.New(telemetry.Config{MeterProvider: metrics.Provider(), StatsTimeout: time.Minute})
	ok(t, err)
	slow := waiting{make(chan struct{}), make(chan struct{})}
	ok(t, tel.WatchOutbox("slow", slow))
	answers := make(chan int)
	for range 5 {
		go func() {
			w := httptest.NewRecorder()
			metrics.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			answers <- w.Code
		}()
	}
	<-slow.begun // one reads, three wait
	if status := <-answers; status != http.StatusServiceUnavailable {
		t.Errorf("the fifth got %d", status)
	}
	close(slow.free)
	for range 4 {
		go func() {
			select {
			case <-slow.begun:
			case <-t.Context().Done():
			}
		}()
	}
	for range 4 {
		if status := <-answers; status != http.StatusOK {
			t.Errorf("got %d", status)
		}
	}
	ok(t, tel.Shutdown(t.Context()))
}
