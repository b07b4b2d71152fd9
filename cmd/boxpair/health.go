package main

import (
	"encoding/json"
	"net"
	"net/http"
	"time"
)

// probed is the body of /readyz and /healthz.
type probed struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"`
}

// serveHealth serves listener until stop is called. stop waits for the goroutine.
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
		_ = server.Close() // running requests are cut off
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
