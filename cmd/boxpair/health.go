package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport/amqp"
)

// staleAfter is how long the database may give no answer to a relay that looks at an empty queue every poll: two
// looks, and at least half a minute.
func staleAfter(poll time.Duration) time.Duration { return max(30*time.Second, 2*poll) }

// problems says what keeps a relay from working, in the words of an operator. None means that it is ready.
// A relay without shards, as beside many others, reads nothing, and is ready to take some.
func problems(relay producer.Health, broker amqp.Health, stale time.Duration) []string {
	list := []string{}
	if !relay.Running {
		list = append(list, "relay: does not run")
	}
	answered := relay.LastRead
	if relay.LastRenewal.After(answered) {
		answered = relay.LastRenewal
	}
	switch waits := relay.Shards == 0 && relay.Relays > 0; {
	case relay.DatabaseError != "" && !answered.After(relay.DatabaseErrorAt) && time.Since(relay.DatabaseErrorAt) <= stale:
		list = append(list, "database: "+relay.DatabaseError)
	case relay.Running && !waits && time.Since(answered) > stale:
		list = append(list, "database: gave no answer yet, or none for "+stale.String())
	}
	if broker.Err != nil {
		list = append(list, "broker: "+broker.Err.Error())
	}
	for _, route := range relay.Routes {
		if route.Paused || route.Overdue {
			list = append(list, fmt.Sprintf("route %s: %s", route.Route, route.LastError))
		}
	}
	return list
}

// probed is the answer of /readyz and /healthz.
type probed struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"`
}

// serveHealth answers on listener until stop is called, which waits for its goroutine.
func serveHealth(listener net.Listener, problems func() []string, live func() bool) (stop func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, probed{OK: live(), Problems: []string{}})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		list := problems()
		answer(w, probed{OK: len(list) == 0, Problems: list})
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // it ends with Close
	}()
	return func() {
		_ = server.Close() // nobody's answer is worth a wait
		<-ended
	}
}

func answer(w http.ResponseWriter, h probed) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !h.OK {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(h) // the client may be gone
}
