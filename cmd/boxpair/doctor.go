package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/amqp"
)

var examine = command{
	name: "doctor", group: looking,
	summary: "find what would lose or stall events, before it does",
	details: `Looks at databases and at RabbitMQ for what would lose events, lose their order, or make them wait:
queues and policies that drop, missing dead-letter exchanges, clocks, connections, autovacuum, old
transactions and replication slots, missing migrations, windows that are too short, rights that are too
wide or too narrow. Changes nothing. Each finding has one remedy. docs/doctor.md lists the checks.

    boxpair doctor --outbox postgres://monitor@orders/shop --inbox postgres://monitor@stock/stock \
        --management http://monitor@rabbit:15672

Exit status: 0 nothing loses or stalls, 1 something does, 2 the settings are wrong.`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		e := &examination{}
		e.define(s)
		return e.run
	},
}

// examination holds the settings of doctor.
type examination struct {
	databases
	display

	config doctor.Config
}

func (e *examination) define(s *settings) {
	c := &e.config
	e.databases.define(s, "the database of an outbox. May be given several times.", "the database of an inbox. May be given several times.")
	s.management(&c.Management)
	s.add("queue", envOf("queue"), "NAME", "a queue to check. May be given several times. Defaults to all of the virtual host.", true,
		func(text string) error { c.Queues = append(c.Queues, text); return nil })
	s.add("exchange", envOf("exchange"), "NAME", "an exchange to check. May be given several times. Defaults to all of the virtual host.", true,
		func(text string) error { c.Exchanges = append(c.Exchanges, text); return nil })
	s.add("ignore", envOf("ignore"), "CHECK,…", "checks to leave out. Defaults to none.", false, e.ignore)
	s.duration(&c.ClockSkew, "clock-skew", "how far clocks may differ. Defaults to 5s.")
	s.duration(&c.TransactionAge, "transaction-age", "how long a transaction may be open. Defaults to 5m.")
	s.duration(&c.EventAge, "event-age", "how old the oldest waiting event may be, and how long a session may wait for another. Defaults to 1m.")
	s.duration(&c.MessageAge, "message-age", "for how long an inbox may retry a message. Defaults to 5m.")
	e.display.define(s)
}

// management declares the settings of RabbitMQ's management API.
func (s *settings) management(to *amqp.Management) {
	s.api(to, "RabbitMQ's management API: http://user:password@host:15672. Defaults to none: RabbitMQ is not asked.")
	broker := envOf("amqp") + "_URL"
	if u, err := amqp091.ParseURI(s.getenv(broker)); err == nil {
		to.VHost = u.Vhost
	}
	s.text(&to.VHost, "vhost", "NAME", "the virtual host, for --management. Defaults to the one of "+broker+", or /.")
}

// api declares the setting of the address of RabbitMQ's management API.
func (s *settings) api(to *amqp.Management, usage string) {
	s.add("management", envOf("management")+"_URL", "URL", usage, false, func(text string) error {
		s.secrets.hide(text)
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return errors.New("want http://user:password@host:15672 or https://…, with reserved characters of user and password percent-encoded")
		}
		if strings.Trim(u.Path, "/") != "" {
			return errors.New("has a path: want http://user:password@host:15672, and the virtual host in --vhost")
		}
		to.URL = text
		return nil
	})
}

func (e *examination) ignore(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		check := doctor.Check(strings.TrimSpace(name))
		if !slices.Contains(doctor.Checks(), check) {
			return fmt.Errorf("there is no check %q", string(check))
		}
		e.config.Ignore = append(e.config.Ignore, check)
	}
	return nil
}

func (e *examination) run(ctx context.Context, p *process) (int, error) {
	if len(e.outboxes)+len(e.inboxes) == 0 && e.config.Management.URL == "" {
		return exitFailed, fmt.Errorf("--outbox, --inbox or --management (or %s_URL, …): is missing", envOf("outbox"))
	}
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	open := func(setting string, list []target) (databases []doctor.Database, err error) {
		for i := range list {
			d, end, err := e.open(ctx, &list[i])
			if err != nil {
				return nil, fmt.Errorf("--%s %s: %w", setting, list[i].name, err)
			}
			databases, ends = append(databases, d), append(ends, end)
		}
		return databases, nil
	}
	var errs [2]error
	e.config.Outboxes, errs[0] = open("outbox", e.outboxes)
	e.config.Inboxes, errs[1] = open("inbox", e.inboxes)
	if err := errors.Join(errs[:]...); err != nil {
		return exitFailed, err
	}
	found, err := doctor.Run(ctx, e.config)
	if err != nil {
		return exitFailed, err
	}
	if e.config.Management.URL != "" && !e.json() {
		fmt.Fprintf(p.stderr, "of RabbitMQ, the virtual host %s is looked at\n", plain(cmp.Or(e.config.Management.VHost, "/")))
	}
	for i := range found {
		f := &found[i]
		f.Remedy = e.named(f.Subject, f.Remedy, "outbox", e.outboxes)
		f.Remedy = e.named(f.Subject, f.Remedy, "inbox", e.inboxes)
	}
	return e.print(p, found)
}

// named puts the URL of a finding's database into the commands of the remedy.
func (e *examination) named(subject, remedy, setting string, list []target) string {
	for i := range list {
		if label := plain(e.places.label(&list[i])); subject == label || strings.HasPrefix(subject, label+": ") {
			return strings.ReplaceAll(remedy, "--"+setting+" URL", "--"+setting+" "+quoted(list[i].shown))
		}
	}
	return remedy
}

// open opens a database for the doctor, who reports an unreachable database.
func (e *examination) open(ctx context.Context, t *target) (doctor.Database, func(), error) {
	schema, prefix := e.places.of(t)
	d := doctor.Database{Name: e.places.label(t), Prefix: prefix}
	switch {
	case t.server != nil:
		return d, nil, errors.New("doctor does not support MySQL and MariaDB, only PostgreSQL, SQLite and RabbitMQ (--management); " +
			"routes, pauses and dead letters are shown by boxpair status, missing migrations by boxpair migrate status; docs/mysql.md lists what the server must be")
	case t.pool == nil:
		db, err := sqlite.OpenReadOnly(t.path)
		if err != nil {
			return d, nil, err
		}
		d.SQLite = db
		return d, func() { _ = db.Close() }, nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, t.pool)
	if err != nil {
		return d, nil, err
	}
	d.Pool, d.Schema = pool, schema
	return d, pool.Close, nil
}

func (e *examination) print(p *process, found []doctor.Finding) (int, error) {
	status := exitOK
	if slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Severity == doctor.Loses || f.Severity == doctor.Stalls }) {
		status = exitFound
	}
	if e.json() {
		return status, e.encode(p.stdout, map[string][]doctor.Finding{"findings": append([]doctor.Finding{}, found...)})
	}
	for i := range found {
		f := &found[i]
		severity := string(f.Severity)
		if e.colored(p) {
			severity = paint(severity)
		}
		const indent = "    "
		e.wrap(p, p.stdout, severity+": ", indent, plain(f.Subject)+": "+plain(f.Problem))
		e.remedy(p, p.stdout, indent, plain(f.Remedy))
	}
	if len(found) == 0 {
		fmt.Fprintln(p.stdout, "nothing was found")
	}
	return status, nil
}
