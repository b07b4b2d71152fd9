package prometheus_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/telemetry/prometheus"
)

// A service serves its metrics beside its own requests.
func Example() {
	metrics, err := prometheus.New(prometheus.Config{Service: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	tel, err := telemetry.New(telemetry.Config{MeterProvider: metrics.Provider(), System: "rabbitmq"})
	if err != nil {
		log.Fatal(err)
	}
	if err := tel.WatchOutbox("shop", waiting{}); err != nil { // a producer.Outbox or a store
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "outbox_") {
			fmt.Print(line)
		}
	}
	// Output:
	// outbox_max_age_seconds{boxpair_outbox="shop"} 90
	// outbox_unsent_count{boxpair_outbox="shop"} 4
}
