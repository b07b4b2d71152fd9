package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/archive"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
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
the same; the command is for relays without the right to delete events, and for cron (--once). --dry-run says how
many rows the next pass would remove.

    boxpair janitor --outbox postgres://janitor@orders/shop --retention 30d --once
    boxpair janitor --outbox postgres://janitor@orders/shop --retention 30d --dry-run

With --archive, the database's role needs the privileges of the archiver: boxpair migrate grants.`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		j := &sweeping{}
		c := &j.config
		c.Retention = 7 * day
		j.define(s, "the database of an outbox. May be given several times with --once or --dry-run.", "")
		s.duration(&c.Retention, "retention", "how long delivered events are kept: for replay, and to recognise an event that is written again.\nDefaults to 7d.")
		archiveSetting(s, &c.Archive)
		s.duration(&c.Interval, "interval", "the pause between two passes. Defaults to 1m.")
		j.out.define(s)
		s.on(&j.once, "once", "make one pass, print its numbers, and end.")
		s.on(&j.dry, "dry-run", "remove and archive nothing, say how many rows a pass would remove, and end.")
		j.limit = countedEvents
		s.count(&j.limit, "limit", "how many delivered events --dry-run counts, and how many discarded and cancelled ones, of each outbox.\nDefaults to 100000.")
		s.choice(&j.logFormat, "log-format", "FORMAT", "text or json. Defaults to text.", "text", "json")
		return j.run
	},
}

// sweeping holds the settings of janitor.
type sweeping struct {
	databases

	config    producer.JanitorConfig
	once, dry bool
	limit     int // of a dry run
	logFormat string
	out       form
}

// countedEvents are counted in some seconds.
const countedEvents = 100_000

func (j *sweeping) run(ctx context.Context, p *process) (int, error) {
	j.once = j.once || j.dry
	if n := len(j.outboxes); n == 0 || n > 1 && !j.once {
		return exitFailed, fmt.Errorf("--outbox (or %s_URL): want exactly one, got %d", envOf("outbox"), n)
	}
	if j.out.json() && !j.once {
		return exitFailed, errors.New("--output: goes with --once or --dry-run only")
	}
	j.config.Logger = logger(p.stderr, j.logFormat, "")
	passes := []map[string]any{}
	err := j.each(ctx, true, func(s *operators) error {
		one, err := producer.NewJanitor(s.removal, j.config)
		if err != nil {
			return fmt.Errorf("--retention: %w", err)
		}
		switch {
		case j.dry:
			c, err := one.Count(ctx, j.limit)
			if err == nil {
				passes = append(passes, j.counted(p, s, c))
			}
			return err
		case !j.once:
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
		name := "removed"
		if j.dry {
			name = "removable"
		}
		err = errors.Join(err, j.out.encode(p.stdout, map[string]any{name: passes}))
	}
	if err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// counted returns what a dry run has counted for JSON, or prints it.
func (j *sweeping) counted(p *process, s *operators, c outbox.RemovableCount) map[string]any {
	if !j.out.json() {
		least := ""
		if c.Capped {
			least = "at least "
		}
		(&display{}).wrap(p, p.stdout, plain(s.name)+": ", "  ", fmt.Sprintf(
			"a pass with --retention %s would remove %s%d delivered, %d discarded and %d cancelled events, %d attempts and %d receipts; nothing was removed",
			whole(j.config.Retention), least, c.Delivered, c.Discarded, c.Cancelled, c.Attempts, c.Receipts))
	}
	return map[string]any{
		"database": s.name, "retention_seconds": j.config.Retention.Seconds(), "delivered": c.Delivered, "discarded": c.Discarded, "cancelled": c.Cancelled,
		"attempts": c.Attempts, "receipts": c.Receipts, "capped": c.Capped,
	}
}

// whole prints a duration as a setting takes it: 7d, 36h, 1h30m.
func whole(d time.Duration) string {
	if d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-len("0s")]
		}
	}
	return text
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
