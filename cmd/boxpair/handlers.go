package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/inbox"
)

// handlerStatus is a handler of a process, as the process has reported it, in JSON.
type handlerStatus struct {
	Consumer string `json:"consumer"`
	Name     string `json:"process"`
	inbox.Process
	inbox.HandlerReport
}

// running reads the handlers of all processes, by consumer and process. told is false if the role may
// not read them, or the table is missing.
func (s *operators) running(ctx context.Context) (list []inbox.RunningHandler, told bool, err error) {
	list, err = s.inbox.ListHandlers(ctx)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == "42501" || pgErr.Code == "42P01") {
		return nil, false, nil
	}
	return list, err == nil, err
}

// addHandlers adds the handlers of the consumers, or of --consumer.
func (q *inspection) addHandlers(ctx context.Context, s *operators, in *inboxStatus) error {
	list, told, err := s.running(ctx)
	if err != nil {
		return err
	}
	in.Handlers, in.Unreported = []handlerStatus{}, []string{}
	reported := make(map[string]bool)
	for i := range list {
		if h := &list[i]; q.consumer == "" || q.consumer == h.Consumer {
			reported[h.Consumer] = true
			in.Handlers = append(in.Handlers, handlerStatus{h.Consumer, h.Name, h.Process, h.HandlerReport})
		}
	}
	for i := range in.Consumers {
		if name := in.Consumers[i].Consumer; told && !reported[name] {
			in.Unreported = append(in.Unreported, name)
		}
	}
	return nil
}

// printHandlers prints the handlers of all processes, and the last failure of each consumer.
func (q *inspection) printHandlers(p *process, in *inboxStatus) error {
	if len(in.Unreported) > 0 {
		q.wrap(p, p.stdout, "", "  ", fmt.Sprintf("no process reports %s: Inbox.Run does, while it runs", plain(strings.Join(in.Unreported, ", "))))
	}
	if len(in.Handlers) == 0 {
		return nil
	}
	g := q.grid(p, column{head: "consumer", flexible: true}, column{head: "host", flexible: true}, column{head: "waiting", number: true}, column{head: "running", number: true}, column{head: "applied", number: true},
		column{head: "copies", number: true}, column{head: "failed", number: true}, column{head: "last applied"}, column{head: "up", wide: true}, column{head: "window", wide: true}, column{head: "version", wide: true},
		column{head: "process", wide: true}, column{head: "last failure", wide: true}, column{head: "last error", wide: true})
	var last []*handlerStatus // to fail, of each consumer
	for i := range in.Handlers {
		h := &in.Handlers[i]
		waiting := "-"
		if h.Waiting != nil {
			waiting = strconv.Itoa(*h.Waiting)
		}
		g.add(h.Consumer, h.Host, waiting, h.InFlight, h.Applied, h.Duplicates, h.Failed, q.when(h.LastSuccess), q.when(h.StartedAt), short(h.Window), h.Version, h.Name, q.when(h.LastFailure), h.LastError)
		if n := len(last); n == 0 || last[n-1].Consumer != h.Consumer {
			last = append(last, h)
		} else if h.LastFailure.After(last[n-1].LastFailure) {
			last[n-1] = h
		}
	}
	if err := g.print(p.stdout); err != nil || q.wide {
		return err
	}
	for _, h := range last {
		if !h.LastFailure.IsZero() {
			q.wrap(p, p.stdout, "", "  ", fmt.Sprintf("%s: failed %s ago at %s: %s", plain(h.Consumer), q.when(h.LastFailure), plain(h.Host), clipped(h.LastError)))
		}
	}
	return nil
}

// suppressed tells how many copies, of all messages, a consumer's processes have acknowledged without
// running the handler.
type suppressed struct {
	Copies    int64     `json:"copies"`
	Processes int       `json:"processes"`
	Since     time.Time `json:"since"` // the start of the oldest process
}

// suppressedBy counts the copies that the processes of a consumer have suppressed; nil without a report.
func suppressedBy(consumer string, list []inbox.RunningHandler) *suppressed {
	var sum *suppressed
	for i := range list {
		h := &list[i]
		if h.Consumer != consumer {
			continue
		}
		if sum == nil {
			sum = &suppressed{Since: h.StartedAt}
		}
		sum.Copies, sum.Processes = sum.Copies+h.Duplicates, sum.Processes+1
		if h.StartedAt.Before(sum.Since) {
			sum.Since = h.StartedAt
		}
	}
	return sum
}

// explainCopies tells which events were confirmed again, and how many copies of all messages together a
// consumer has suppressed.
func explainCopies(say func(about, format string, args ...any), one *sight) {
	for i := range one.Events {
		if n := len(one.Events[i].Deliveries); n > 1 {
			say("copies", "the broker has confirmed it %d times, last %s ago", n, short(time.Since(one.Events[i].Deliveries[n-1].At)))
		}
	}
	for i := range one.Inbox {
		if c := one.Inbox[i].Suppressed; c != nil && c.Copies > 0 {
			processes := "1 process"
			if c.Processes != 1 {
				processes = fmt.Sprintf("%d processes", c.Processes)
			}
			say("copies", "%s has suppressed %d, of all its messages together, in %s since %s; of which messages is not recorded",
				one.Inbox[i].Consumer, c.Copies, processes, short(time.Since(c.Since)))
		}
	}
}
