package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
)

// store is the part of a store that the checks need, in any database.
type store interface {
	CheckSchema(ctx context.Context) error
	Stats(ctx context.Context) (outbox.Stats, error)
	ListRoutes(ctx context.Context) ([]outbox.StalledRoute, error)
	Pauses(ctx context.Context) ([]control.Pause, error)
	InboxStats(ctx context.Context, consumer int) (inbox.Stats, error)
	EffectStats(ctx context.Context, consumer int) (inbox.EffectStats, error)
}

// tables are the tables of one outbox or inbox, or of both.
type tables struct {
	Database

	names           migrations.Names
	store           store
	outbox, inbox   bool
	server          *server // nil for SQLite
	expired         []expired
	horizons        []horizon
	consumers       []consumer
	readers         []*reader
	schema, numbers bool // whether the role may see the migrations and the sequence
}

// expired is a relay with shards whose leases are over.
type expired struct {
	relay  string
	shards int
}

// horizon is for how long the recent events of a producer may be sent again.
type horizon struct {
	producer string
	resend   time.Duration
}

// consumer is a registered consumer of an inbox.
type consumer struct {
	id             int
	name           string
	window, silent time.Duration
	horizon        time.Duration // for how long its latest messages may be sent again
}

// databases does the checks of all databases.
func (r *run) databases(ctx context.Context) {
	r.connect(ctx)
	var servers []*server
	var all []*tables
	for _, side := range []struct {
		list   []Database
		outbox bool
	}{{r.cfg.Outboxes, true}, {r.cfg.Inboxes, false}} {
		for i := range side.list {
			d := &side.list[i]
			err := r.unreachable[d.Pool]
			var t *tables
			if err == nil {
				t, err = r.open(ctx, d, &servers)
			}
			if err != nil {
				r.failed(Reach, side.list[i].Name, err)
				continue
			}
			if same := slices.IndexFunc(all, t.sameAs); same >= 0 {
				t = all[same]
			} else {
				all = append(all, t)
			}
			t.outbox, t.inbox = t.outbox || side.outbox, t.inbox || !side.outbox
		}
	}
	r.clocks(servers)
	for _, s := range servers {
		r.server(ctx, s)
	}
	for _, t := range all {
		r.tables(ctx, t)
	}
	for _, s := range servers {
		r.vacuum(s)
	}
	r.windows(all)
	r.sharedQueues(all)
}

// connect connects to all databases of PostgreSQL at once: a new session takes its server as long as
// several statements.
func (r *run) connect(ctx context.Context) {
	var mu sync.Mutex
	var all sync.WaitGroup
	r.unreachable = make(map[*pgxpool.Pool]error)
	for _, d := range slices.Concat(r.cfg.Outboxes, r.cfg.Inboxes) {
		if d.Pool == nil {
			continue
		}
		all.Go(func() {
			if err := d.Pool.Ping(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				r.unreachable[d.Pool] = err
			}
		})
	}
	all.Wait()
}

// open reaches a database, and adds its server to servers if the server is new.
func (r *run) open(ctx context.Context, d *Database, servers *[]*server) (*tables, error) {
	names, err := d.names()
	if err != nil {
		return nil, err
	}
	t := &tables{Database: *d, names: names, schema: true, numbers: true}
	if d.SQLite != nil {
		if err := d.SQLite.PingContext(ctx); err != nil {
			return nil, err
		}
		t.store, err = sqlite.New(d.SQLite, sqlite.Config{Prefix: d.Prefix, Unguarded: true}) // which reads only
		return t, err
	}
	s, err := readServer(ctx, d)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(*servers, func(o *server) bool { return o.started.Equal(s.started) }); i >= 0 {
		s = (*servers)[i]
	} else {
		*servers = append(*servers, s)
	}
	t.server, s.pools[d.Pool] = s, max(s.pools[d.Pool], d.Connections)
	t.store, err = postgres.New(d.Pool, postgres.Config{Schema: d.Schema, Prefix: d.Prefix})
	return t, err
}

// sameAs tells whether t and o are the same tables. A SQLite file that was opened twice counts twice.
func (t *tables) sameAs(o *tables) bool {
	if t.Table() != o.Table() {
		return false
	}
	if t.SQLite != nil || o.SQLite != nil {
		return t.SQLite == o.SQLite
	}
	return t.server == o.server && t.database() == o.database()
}

// Table returns the name of the table that every outbox has.
func (t *tables) Table() string { return t.names.Table("outbox_events") }

func (t *tables) database() string { return t.Pool.Config().ConnConfig.Database }

// tables does the checks of the content of tables.
func (r *run) tables(ctx context.Context, t *tables) {
	if t.server != nil && !r.postgresTables(ctx, t) {
		return
	}
	r.schema(ctx, t)
	if t.outbox {
		r.sequence(ctx, t)
		r.queue(ctx, t)
		r.routes(ctx, t)
		r.readLog(ctx, t)
	}
	if t.inbox {
		r.consumers(ctx, t)
		r.readers(ctx, t)
	}
	r.pauses(ctx, t)
}

const migrate = "boxpair migrate up, or Migrate of the store"

func (r *run) schema(ctx context.Context, t *tables) {
	switch err := t.store.CheckSchema(ctx); {
	case !t.schema:
		r.add(Migrations, NotChecked, t.Name, "the role may not read "+t.names.Table(migrations.HistoryTable)+", or another tool has made the tables",
			"run the grants of migrations/grants/postgres.sql again")
	case errors.Is(err, migrations.ErrMissing), errors.Is(err, migrations.ErrChanged):
		r.add(Migrations, Stalls, t.Name, err.Error(), migrate)
	case err != nil && strings.Contains(err.Error(), "from which its own was renamed"): // no error of a server
		r.add(Migrations, Loses, t.Name, err.Error(), migrate)
	case err != nil:
		r.failed(Migrations, t.Name, err)
	}
}

func (r *run) sequence(ctx context.Context, t *tables) {
	checker, numbered := t.store.(outbox.SequenceChecker)
	if !numbered {
		return // the database numbers rows by itself
	}
	if !t.numbers {
		r.add(Sequence, NotChecked, t.Name, "the role may not read the sequence of event numbers", "run the grants of migrations/grants/postgres.sql again")
		return
	}
	err := checker.CheckSequence(ctx, 0)
	if low, is := errors.AsType[*outbox.SequenceError](err); is {
		r.add(Sequence, Loses, t.Name, fmt.Sprintf("the sequence of event numbers is at %d, below event %d: new events overtake older ones of their keys, or inserts fail", low.Last, low.Highest),
			fmt.Sprintf("SELECT setval(%s, %d)", literal(low.Sequence), low.Highest))
	} else if err != nil {
		r.failed(Sequence, t.Name, err)
	}
}

const shards = 64

// queue looks at relays, and at waiting and dead events of an outbox.
func (r *run) queue(ctx context.Context, t *tables) {
	st, err := t.store.Stats(ctx)
	if err != nil {
		r.failed(Relays, t.Name, err)
		return
	}
	switch {
	case st.Relays == 0:
		r.add(Relays, Stalls, t.Name, "no relay runs", "start one: boxpair relay, or relay.Relay.Run")
	case st.Owned < shards:
		r.add(Relays, Stalls, t.Name, fmt.Sprintf("no relay owns %d of %d shards, though %d run", shards-st.Owned, shards, st.Relays),
			"look into the log and the /readyz of the relays; shards are taken over within a lease, 10 seconds")
	}
	if st.OldestPending > r.cfg.EventAge {
		r.add(Waiting, Stalls, t.Name, fmt.Sprintf("the oldest event waits for %v", st.OldestPending.Round(time.Second)), "boxpair events --outbox URL --state pending; then boxpair why with the ID of one")
	}
	if st.Dead > 0 {
		r.add(DeadLetters, Stalls, t.Name, fmt.Sprintf("%d dead events wait for an operator", st.Dead), "boxpair dead list --outbox URL; then redrive or discard")
	}
}

func (r *run) routes(ctx context.Context, t *tables) {
	list, err := t.store.ListRoutes(ctx)
	if err != nil {
		r.failed(Routes, t.Name, err)
	}
	for i := range list {
		if route := &list[i]; route.State != outbox.RoutePaused { // Pauses tells
			r.add(Routes, Stalls, t.Name, fmt.Sprintf("relay %s cannot send to topic %q for %v: %s", route.Relay, route.Topic, route.For.Round(time.Second), route.LastError),
				mend(route))
		}
	}
}

// mend returns the remedy for a stalled route.
func mend(route *outbox.StalledRoute) string {
	switch {
	case strings.Contains(route.LastError, "ACCESS_REFUSED"):
		return "let the relay's user write there: rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ"
	case strings.Contains(route.LastError, "NO_ROUTE"):
		return "declare the queue or bind it; drop a topic that nobody needs: boxpair relay --drop-unroutable TOPIC"
	case route.State == outbox.RouteRefusing:
		return "look for a full queue, and for limits by policy: boxpair doctor --management URL"
	}
	return "bring the broker back; the relay goes on by itself"
}

func (r *run) pauses(ctx context.Context, t *tables) {
	list, err := t.store.Pauses(ctx)
	if err != nil {
		r.failed(Pauses, t.Name, err)
	}
	for i := range list {
		p := &list[i]
		side := "--outbox"
		if p.Kind == control.Consumer {
			side = "--inbox"
		}
		r.add(Pauses, Stalls, t.Name, fmt.Sprintf("%v (since %s)", p, p.Since.UTC().Format(time.DateTime)),
			fmt.Sprintf("boxpair resume %s URL --%s %s", side, p.Kind, shell(p.Name)))
	}
}

// readLog reads expired leases, and for how long events may be sent again.
func (r *run) readLog(ctx context.Context, t *tables) {
	var err error
	if t.expired, err = query(ctx, t, func(row scanner, e *expired) error { return row.Scan(&e.relay, &e.shards) },
		`SELECT owner, count(*) FROM {outbox_shards} WHERE owner IS NOT NULL AND lease_until <= {now} GROUP BY owner ORDER BY owner`); err != nil {
		r.failed(ExpiredLease, t.Name, err)
	}
	for _, e := range t.expired {
		r.add(ExpiredLease, Stalls, t.Name, fmt.Sprintf("relay %s has ended without giving back %d shards, and no relay has taken them over", e.relay, e.shards),
			"start a relay, and look why that one ended")
	}
	// The log may be large, and the latest events tell what the producers announce now.
	if t.horizons, err = query(ctx, t, func(row scanner, h *horizon) error {
		var seconds int64
		err := row.Scan(&h.producer, &seconds)
		h.resend = time.Duration(seconds) * time.Second
		return err
	}, `SELECT producer, max(resend_seconds) FROM (
			SELECT producer, resend_seconds FROM {outbox_events} ORDER BY id DESC LIMIT 10000
		) e GROUP BY producer ORDER BY producer`); err != nil {
		r.failed(Window, t.Name, err)
	}
}

// consumers looks at the consumers of an inbox.
func (r *run) consumers(ctx context.Context, t *tables) {
	window := "(extract(epoch FROM window_size) * 1000000)::bigint"
	silent := "(extract(epoch FROM clock_timestamp() - passed_at) * 1000000)::bigint"
	if t.SQLite != nil {
		window, silent = "window_us", "{now} - passed_at"
	}
	var err error
	if t.consumers, err = query(ctx, t, func(row scanner, c *consumer) error {
		var window, silent int64
		err := row.Scan(&c.id, &c.name, &window, &silent)
		c.window, c.silent = time.Duration(window)*time.Microsecond, time.Duration(silent)*time.Microsecond
		return err
	}, `SELECT id, name, `+window+`, `+silent+` FROM {inbox_consumers} ORDER BY name`); err != nil {
		r.failed(IdleConsumer, t.Name, err)
	}
	for i := range t.consumers {
		r.consumer(ctx, t, &t.consumers[i])
	}
}

func (r *run) consumer(ctx context.Context, t *tables, c *consumer) {
	subject := t.Name + ": consumer " + c.name
	if c.silent > r.cfg.ConsumerSilence {
		r.add(IdleConsumer, Stalls, subject, fmt.Sprintf("no process has run its Inbox.Run for %v", c.silent.Round(time.Second)),
			"start the service, or call Inbox.Run in it; nothing to do for a consumer that is gone for good")
	}
	st, err := t.store.InboxStats(ctx, c.id)
	if err == nil {
		st.Effects, err = t.store.EffectStats(ctx, c.id)
	}
	if err != nil {
		r.failed(DeadLetters, subject, err)
		return
	}
	if n := st.Dead + st.TooOld + st.Altered; n > 0 {
		r.add(DeadLetters, Stalls, subject, fmt.Sprintf("%d messages wait for an operator: %d dead, %d too old, %d altered", n, st.Dead, st.TooOld, st.Altered),
			"boxpair dead list --inbox URL --consumer "+shell(c.name)+"; then redrive or discard")
	}
	if st.OldestParked > r.cfg.MessageAge {
		r.retried(ctx, t, c, subject, st.OldestParked)
	}
	if e := &st.Effects; e.Uncertain+e.Dead > 0 {
		r.add(Effects, Stalls, subject, fmt.Sprintf("%d effects wait for an operator: %d uncertain, %d dead", e.Uncertain+e.Dead, e.Uncertain, e.Dead),
			"boxpair effects list --inbox URL --consumer "+shell(c.name))
	}
	c.horizon = st.Horizon
}

// windows compares the window of each consumer with the horizons of its messages, and of the events
// of each outbox. A short window is one finding, even if several horizons are longer.
func (r *run) windows(all []*tables) {
	for _, in := range all {
		for i := range in.consumers {
			r.window(in, &in.consumers[i], all)
		}
	}
}

func (r *run) window(in *tables, c *consumer, all []*tables) {
	var longer []string
	longest, sure := c.window, ""
	if c.horizon > c.window {
		longer, longest = append(longer, fmt.Sprintf("its messages may come again for %v", c.horizon)), c.horizon
	} else {
		sure = ", if the consumer gets its events"
	}
	for _, out := range all {
		for _, h := range out.horizons {
			if h.resend > c.window {
				longer, longest = append(longer, fmt.Sprintf("producer %q in %s may send events again for %v", h.producer, out.Name, h.resend)), max(longest, h.resend)
			}
		}
	}
	if len(longer) > 0 {
		r.add(Window, Loses, in.Name+": consumer "+c.name,
			fmt.Sprintf("it remembers messages for %v only, and sets aside as too old what comes again later: %s", c.window, strings.Join(longer, ", ")),
			fmt.Sprintf("set consumer.Config.Window to more than %v, or ResendFor of the producers to less%s", longest, sure))
	}
}

// scanner is a row of either database.
type scanner interface{ Scan(dest ...any) error }

var placeholder = regexp.MustCompile(`\{\w+\}`)

// statement replaces the names in braces.
func (t *tables) statement(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(name string) string {
		switch {
		case name != "{now}":
			return t.names.Table(name[1 : len(name)-1])
		case t.SQLite != nil:
			return "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
		}
		return "clock_timestamp()"
	})
}

// query reads all rows of a statement, in which {name} is a table and {now} the time.
func query[T any](ctx context.Context, t *tables, scan func(scanner, *T) error, statement string, args ...any) (list []T, err error) {
	text := t.statement(statement)
	if t.SQLite == nil {
		rows, err := t.Pool.Query(ctx, text, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (v T, err error) { return v, scan(row, &v) })
	}
	rows, err := t.SQLite.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = cmp.Or(err, rows.Close()) }()
	for rows.Next() {
		var v T
		if err := scan(rows, &v); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}
