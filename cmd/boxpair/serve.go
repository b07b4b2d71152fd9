package main

import (
	"net"
	"net/http"
	"time"
)

// serve serves handler at listener until stop is called. stop waits for the goroutine.
func serve(listener net.Listener, handler http.Handler) (stop func()) {
	const most = 15 * time.Second // a scrape reads databases
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: most, WriteTimeout: most}
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
