package service

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strconv"
)

// Ports are drawn below Linux's range of source ports for outgoing connections: tests open
// thousands of connections while a server boots.
const (
	firstPort = 15000
	lastPort  = 32000
)

// FreePort returns a free port of the loopback address. No outgoing connection takes the port while
// its server restarts.
func FreePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

// freePorts returns n different free ports. Another process may take a port before its use; callers
// then try again.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port, err := draw()
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		// All listeners stay open until the end, so that no port is drawn twice.
		defer l.Close()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d", n, firstPort, lastPort)
}

const loopback = "127.0.0.1"

func draw() (int, error) {
	n, err := rand.Int(rand.Reader, big.NewInt(lastPort-firstPort))
	if err != nil {
		return 0, err
	}
	return firstPort + int(n.Int64()), nil
}

// token returns a random lower-case word, unique among servers.
func token() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// attempts is how often a server that exits during its start is started, each time on other ports.
const attempts = 4

// retry calls start until it succeeds, or fails for another reason than an early exit. name is the
// server's name in errors.
func retry[T any](name string, start func() (*T, error)) (*T, error) {
	var errs []error
	for range attempts {
		server, err := start()
		if err == nil {
			return server, nil
		}
		errs = append(errs, err)
		if !errors.Is(err, errExited) {
			break
		}
	}
	return nil, fmt.Errorf("start %s: %w", name, errors.Join(errs...))
}
