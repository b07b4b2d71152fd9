package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/ops"
)

var dashboard = command{
	name: "ui", group: running,
	summary: "serve a dashboard of outboxes and inboxes",
	details: `Serves the dashboard of the given databases until stopped: what waits, since when and why, one event's
life across services, dead letters by cause, and the buttons to redrive, discard, move and pause.
Without --token, only this machine may look, and nobody may change anything without --write.

    boxpair ui --outbox postgres://operator@orders/shop --inbox postgres://operator@stock/stock --write`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		u := &looks{listen: "127.0.0.1:8088"}
		u.databases.define(s, "the database of an outbox. May be given several times.", "the database of an inbox. May be given several times.")
		u.define(s)
		s.text(&u.listen, "listen", "ADDRESS", "the address of the dashboard. Defaults to 127.0.0.1:8088.")
		s.choice(&u.logFormat, "log-format", "FORMAT", "text or json. Defaults to text.", "text", "json")
		return u.run
	},
}

// looks holds the settings of ui.
type looks struct {
	databases

	listen, logFormat string
	page              ops.Config
	write             bool
}

func (u *looks) define(s *settings) {
	s.text(&u.page.Title, "title", "TEXT", "the name at the top of every page. Defaults to boxpair.")
	s.add("token", envOf("token"), "TEXT", "the password, at least 16 bytes, that makes anybody an operator. Defaults to none: requests of this machine only.", false, func(text string) error {
		s.secrets.secret(text)
		u.page.Token = text
		return nil
	})
	s.on(&u.write, "write", "let everybody on this machine change things, if there is no --token.")
	s.on(&u.page.Payloads, "payloads", "show payloads and headers.")
}

func (u *looks) run(ctx context.Context, p *process) (int, error) {
	if err := u.some(); err != nil {
		return exitFailed, err
	}
	log := logger(p.stderr, u.logFormat, "")
	for _, list := range [][]target{u.outboxes, u.inboxes} {
		for i := range list {
			if list[i].pool != nil {
				list[i].pool.MaxConns = connections
			}
		}
	}
	all, err := u.open(ctx)
	if err != nil {
		return exitFailed, err
	}
	handler, err := u.handler(all, log)
	if err != nil {
		return exitFailed, err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", u.listen)
	if err != nil {
		return exitFailed, fmt.Errorf("--listen: %w", err)
	}
	stop := serve(listener, handler)
	log.InfoContext(ctx, "dashboard is served", "address", "http://"+listener.Addr().String())
	<-ctx.Done()
	stop()
	return exitOK, nil
}

// handler returns the dashboard of opened databases.
func (u *looks) handler(all []*operators, log *slog.Logger) (http.Handler, error) {
	c := u.page
	c.Logger = log
	if u.write {
		if c.Token != "" {
			return nil, errors.New("--write: --token already makes operators")
		}
		c.Loopback = ops.Operator
	}
	names := addressed(all)
	for i, s := range all {
		if s.isInbox {
			one := ops.Inbox{Name: names[i], Operator: s.inbox, Parts: s.parts}
			if s.ledger != nil {
				one.Effects = s.ledger
			}
			c.Inboxes = append(c.Inboxes, one)
			continue
		}
		c.Outboxes = append(c.Outboxes, ops.Outbox{Name: names[i], Operator: s.outbox, Parts: s.parts})
	}
	return ops.New(c)
}

// addressed returns a short name for each database that can stand in an address: the name of the database
// or of the file, with a number if an earlier database of its side has the same name.
func addressed(all []*operators) []string {
	names, taken := make([]string, len(all)), make(map[string]int)
	for i, s := range all {
		name := strings.TrimSuffix(filepath.Base(s.target.path), filepath.Ext(s.target.path))
		switch {
		case s.target.pool != nil:
			name = s.target.pool.ConnConfig.Database
		case s.target.server != nil:
			name = s.target.server.DBName
		}
		name = strings.Map(func(r rune) rune {
			if strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r) {
				return r
			}
			return '-'
		}, name)
		side := fmt.Sprint(s.isInbox, name)
		taken[side]++
		if n := taken[side]; n > 1 {
			name = fmt.Sprintf("%s-%d", name, n)
		}
		names[i] = name
	}
	return names
}

// settled returns the ledger of an inbox, or nil if its store keeps no effects.
func settled[TX any](in *consumer.Inbox[TX]) ops.Effects {
	ledger, err := effects.New(in)
	if err != nil {
		return nil
	}
	return ledger
}
