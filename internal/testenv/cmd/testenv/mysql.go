package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/internal/testenv/service"
)

// offerMySQL answers each request with the address of a MariaDB or MySQL server. The server is
// started at the first request: few packages need it, and its start takes seconds.
func (e *environment) offerMySQL() error {
	if os.Getenv(testenv.MySQLURL) != "" {
		return nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	o := &offer{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = conn.Write([]byte(o.answer(ctx))) // the client may be gone
				_ = conn.Close()
			})
		}
	})
	e.add(func() error {
		cancel()
		err := listener.Close()
		wg.Wait()
		return errors.Join(err, o.close())
	}, testenv.MySQLFrom+"="+listener.Addr().String())
	return nil
}

// offer is a server that is started on demand.
type offer struct {
	once   sync.Once
	server *service.MySQL
	err    error
}

func (o *offer) answer(ctx context.Context) string {
	o.once.Do(func() {
		if err := service.InstallMySQL(ctx, say); err != nil {
			say("%v", err) // Docker may still work
		}
		o.server, o.err = service.StartMySQL(ctx)
		if errors.Is(o.err, service.ErrMissing) {
			o.err = fmt.Errorf("%w\nInstall MariaDB or MySQL (Debian: apt-get install mariadb-server; macOS: brew install mariadb), "+
				"or start Docker, or set %s", o.err, testenv.MySQLURL)
		}
	})
	if o.err != nil {
		return o.err.Error()
	}
	return "ok " + o.server.URL()
}

func (o *offer) close() error {
	if o.server == nil {
		return nil
	}
	return o.server.Close()
}
