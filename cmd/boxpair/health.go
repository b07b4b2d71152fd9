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

// staleAfter is how old the last reading of the database may be. A relay looks at an empty queue at least
// every PollMax, and renews its leases.
const staleAfter = 30 * time.Second

// problems says what keeps a relay from working, in the words of an operator. None means that it is ready.
func problems(relay producer.Health, broker amqp.Health) []string {
	list := []string{}
	if !relay.Running {
		list = append(list, "relay: does not run")
	}
	if relay.DatabaseError != "" && !relay.LastRead.After(relay.DatabaseErrorAt) {
		list = append(list, "database: "+relay.DatabaseError)
	} else if relay.Running && time.Since(relay.LastRead) > staleAfter {
		list = append(list, "database: was never read, or not for "+staleAfter.String())
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

// health is the answer of /readyz and /healthz.
type health struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"`
}

// serveHealth answers on listener until stop is called, which waits for its goroutine.
func serveHealth(listener net.Listener, problems func() []string, live func() bool) (stop func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, health{OK: live(), Problems: []string{}})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		list := problems()
		answer(w, health{OK: len(list) == 0, Problems: list})
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

func answer(w http.ResponseWriter, h health) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !h.OK {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(h) // the client may be gone
}
