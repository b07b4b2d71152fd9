package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/archive"
	"github.com/boxpair/boxpair/producer/relay"
)

var drain = command{
	name: "drain", group: running,
	summary: "send what waits once, and end: for cron and functions",
	details: `Sends the events of an outbox that wait, and ends when none is left that can be sent, or after
--within. Takes the settings of boxpair relay. Prints how many events were delivered, failed, died, and
were left.

    boxpair drain --outbox postgres://relay@orders/shop --amqp amqps://relay@rabbit/ --within 50s

The exit status is 1 if events were left or --within was over.`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		r := newRelaying(s)
		within, out := drainTime, &form{}
		out.define(s)
		s.duration(&within, "within", "the longest time for sending. Defaults to 1m.")
		return func(ctx context.Context, p *process) (int, error) { return r.drain(ctx, p, within, out) }
	},
}

const drainTime = time.Minute

// drain sends the waiting events once.
func (r *relaying) drain(ctx context.Context, p *process, within time.Duration, out *form) (int, error) {
	if err := r.check(); err != nil {
		return exitFailed, err
	}
	log := logger(p.stderr, r.logFormat, r.logLevel)
	c, err := r.muster(ctx, log)
	defer c.end()
	if err != nil {
		return exitFailed, err
	}
	errOver := errors.New("--within is over")
	bounded, cancel := context.WithTimeoutCause(ctx, within, errOver)
	defer cancel()
	var sum relay.Report
	var errs []error
	for i, one := range c.relays { // one after another: each relay has the whole window
		report, err := one.RunOnce(bounded)
		sum.Delivered, sum.Failed, sum.Dead, sum.Left = sum.Delivered+report.Delivered, sum.Failed+report.Failed, sum.Dead+report.Dead, sum.Left+report.Left
		if err != nil {
			errs = append(errs, fmt.Errorf("--outbox %s: %w", c.outboxes[i], err))
		}
	}
	err = errors.Join(errs...)
	text := fmt.Sprintf("%d delivered, %d attempts failed, %d dead, %d left\n", sum.Delivered, sum.Failed, sum.Dead, sum.Left)
	if failed := out.result(p, text, map[string]any{"delivered": sum.Delivered, "failed": sum.Failed, "dead": sum.Dead, "left": sum.Left}); failed != nil {
		return exitFailed, failed
	}
	switch {
	case ctx.Err() != nil:
		return exitFailed, context.Cause(ctx)
	case errors.Is(err, errOver):
		fmt.Fprintf(p.stderr, "%v was over before everything was sent\n", within)
		return exitFound, nil
	case err != nil:
		return exitFailed, err
	case sum.Left > 0:
		return exitFound, nil
	}
	return exitOK, nil
}

var janitor = command{
	name: "janitor", group: running,
	summary: "remove old events of an outbox, until stopped or once",
	details: `Removes events that were delivered, cancelled or discarded more than --retention ago. boxpair relay does
the same; the command is for relays without the right to delete events, and for cron (--once).

    boxpair janitor --outbox postgres://janitor@orders/shop --retention 30d --once

With --archive, the database's role needs the privileges of the archiver: boxpair migrate grants.`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		j := &sweeping{}
		c := &j.config
		j.define(s, "the database of an outbox. May be given several times with --once.", "")
		s.duration(&c.Retention, "retention", "how long delivered events are kept: for replay, and to recognise an event that is written again.\nDefaults to 7d.")
		archiveSetting(s, &c.Archive)
		s.duration(&c.Interval, "interval", "the pause between two passes. Defaults to 1m.")
		j.out.define(s)
		s.on(&j.once, "once", "make one pass, print its numbers, and end.")
		s.choice(&j.logFormat, "log-format", "FORMAT", "text or json. Defaults to text.", "text", "json")
		return j.run
	},
}

// sweeping holds the settings of janitor.
type sweeping struct {
	databases

	config    producer.JanitorConfig
	once      bool
	logFormat string
	out       form
}

func (j *sweeping) run(ctx context.Context, p *process) (int, error) {
	if n := len(j.outboxes); n == 0 || n > 1 && !j.once {
		return exitFailed, fmt.Errorf("--outbox (or %s_URL): want exactly one, got %d", envOf("outbox"), n)
	}
	if j.out.json() && !j.once {
		return exitFailed, errors.New("--output: goes with --once only")
	}
	j.config.Logger = logger(p.stderr, j.logFormat, "")
	passes := []map[string]any{}
	err := j.each(ctx, true, func(s *operators) error {
		one, err := producer.NewJanitor(s.removal, j.config)
		if err != nil {
			return fmt.Errorf("--retention: %w", err)
		}
		if !j.once {
			return one.Run(ctx)
		}
		report, err := one.RunOnce(ctx)
		if j.out.json() {
			passes = append(passes, map[string]any{
				"database": s.name, "events": report.Events, "attempts": report.Attempts, "receipts": report.Receipts, "archived": report.Archived,
			})
			return err
		}
		fmt.Fprintf(p.stdout, "%s: %d events, %d attempts and %d receipts were removed\n", plain(s.name), report.Events, report.Attempts, report.Receipts)
		if j.config.Archive != nil {
			fmt.Fprintf(p.stdout, "%s: %d events were archived\n", plain(s.name), report.Archived)
		}
		return err
	})
	if j.once && j.out.json() {
		err = errors.Join(err, j.out.encode(p.stdout, map[string]any{"removed": passes}))
	}
	if err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// archiveSetting declares the setting that names the directory of an archive.
func archiveSetting(s *settings, to *producer.ArchiveSink) {
	s.add("archive", envOf("archive"), "DIRECTORY", "write events to compressed files in this directory before they are removed, as JanitorConfig.Archive with\n"+
		"package producer/archive. The directory must exist; files of several outboxes may share it. Defaults to none.", false, func(dir string) error {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return errors.New("is not a directory")
		}
		files, err := archive.New(dir)
		*to = files
		return err
	})
}
