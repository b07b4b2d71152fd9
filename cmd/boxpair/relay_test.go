package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// plantEvents makes an outbox with events of one topic.
func plantEvents(t *testing.T, url, topic string, n int) {
	t.Helper()
	status, _, errs := call(t, nil, "migrate", "up", "--database", url)
	if status != exitOK {
		t.Fatal(errs)
	}
	pool, err := pgxpool.New(t.Context(), url)
	ok(t, err)
	defer pool.Close()
	store, err := postgres.New(pool, postgres.Config{})
	ok(t, err)
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	ok(t, err)
	ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		for i := range n {
			if _, err := w.Write(ctx, producer.Event{
				Topic: topic, Key: "k", Source: "order", Version: int64(i + 1), Payload: fmt.Append(nil, i),
			}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// daemon is the running program.
type daemon struct {
	cmd    *exec.Cmd
	health string // its address
	logged chan string
}

// start starts a relay and waits for the line with the address of its health.
func start(t *testing.T, args ...string) *daemon {
	t.Helper()
	return startWith(t, nil, args...)
}

// startWith is start with variables.
func startWith(t *testing.T, env []string, args ...string) *daemon {
	t.Helper()
	d := &daemon{cmd: exec.CommandContext(t.Context(), program, append([]string{"relay", "--listen", "127.0.0.1:0"}, args...)...), logged: make(chan string, 1)}
	d.cmd.Env = append(os.Environ(), env...)
	stderr, err := d.cmd.StderrPipe()
	ok(t, err)
	ok(t, d.cmd.Start())
	address := make(chan string, 1)
	go func() {
		var all strings.Builder
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			all.WriteString(lines.Text() + "\n")
			if _, at, found := strings.Cut(lines.Text(), "msg=\"health is served\" address="); found {
				address <- at
			}
		}
		close(address)
		d.logged <- all.String()
	}()
	var open bool
	if d.health, open = <-address; !open {
		t.Fatalf("the relay ended: %s", <-d.logged)
	}
	return d
}

// stop ends the program as an orchestrator does, and returns its log.
func (d *daemon) stop(t *testing.T) string {
	t.Helper()
	ok(t, d.cmd.Process.Signal(syscall.SIGTERM))
	logged := <-d.logged
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, logged)
	}
	return logged
}

// get returns a health endpoint's status and answer.
func (d *daemon) get(t *testing.T, path string) (int, string) {
	t.Helper()
	return d.ask(t, http.MethodGet, path, "", nil)
}

// await polls until what returns nil.
func await(t *testing.T, what func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		err := what()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within a minute: %v", err)
		}
	}
}

// status returns a check of a health endpoint's status, and of a text in its answer.
func (d *daemon) status(t *testing.T, path string, want int, text string) func() error {
	t.Helper()
	return func() error {
		if got, body := d.get(t, path); got != want || !strings.Contains(body, text) {
			return fmt.Errorf("%s: %d, %s", path, got, body)
		}
		return nil
	}
}

// onChannel calls do with a new channel on a new connection, which no error of an earlier try has
// closed.
func onChannel(broker string, do func(*amqp091.Channel) error) error {
	conn, err := amqp091.Dial(broker)
	if err != nil {
		return err
	}
	channel, err := conn.Channel()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	return errors.Join(do(channel), conn.Close())
}

func TestRelayPublishesUntilItIsTold(t *testing.T) {
	t.Parallel()
	for setting, as := range map[string]func(d *amqp091.Delivery, topic, payload string) bool{
		"cloud-events": func(d *amqp091.Delivery, topic, payload string) bool {
			return d.Headers["cloudEvents_type"] == topic && string(d.Body) == payload
		},
		"all-headers": func(d *amqp091.Delivery, _, payload string) bool {
			return d.Headers["_watermill_message_uuid"] == d.MessageId && string(d.Body) == payload
		},
		"envelope": func(d *amqp091.Delivery, _, payload string) bool {
			return d.ContentEncoding == "boxpair" && strings.HasSuffix(string(d.Body), "\n"+payload)
		},
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			relayPublishesUntilItIsTold(t, setting, as)
		})
	}
}

func relayPublishesUntilItIsTold(t *testing.T, setting string, as func(d *amqp091.Delivery, topic, payload string) bool) {
	t.Helper()
	const n = 50
	database, broker, topic := testenv.Postgres(t), testenv.AMQPURL(t), testenv.Name(t)
	plantEvents(t, database, topic, n)
	t.Cleanup(func() {
		ok(t, onChannel(broker, func(channel *amqp091.Channel) error {
			_, err := channel.QueueDelete(topic, false, false, false)
			return err
		}))
	})

	file := filepath.Join(t.TempDir(), "relay.yaml")
	ok(t, os.WriteFile(file, []byte("outbox: "+database+"\namqp: "+broker+"\nexchanges: queue\ncompeting-consumers: true\nlease: 1m\n"+setting+": true\n"), 0o600))
	d := start(t, "--config", file)
	await(t, d.status(t, "/readyz", http.StatusOK, `{"ok":true,"problems":[]}`))
	await(t, d.status(t, "/healthz", http.StatusOK, `"ok":true`))
	for i := range n {
		await(t, func() error {
			return onChannel(broker, func(channel *amqp091.Channel) error {
				delivery, found, err := channel.Get(topic, true)
				if err != nil {
					return err // the queue is not there yet
				}
				if !found {
					return fmt.Errorf("message %d is not there", i)
				}
				if !as(&delivery, topic, fmt.Sprint(i)) {
					t.Errorf("message %d is %+v", i, delivery)
				}
				return nil
			})
		})
	}
	logged := d.stop(t)
	if !strings.Contains(logged, "relay has ended") {
		t.Errorf("log: %s", logged)
	}
	pool, err := pgx.Connect(t.Context(), database)
	ok(t, err)
	defer pool.Close(context.WithoutCancel(t.Context()))
	var queued, leased int
	ok(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM boxpair.outbox_queue), (SELECT count(owner) FROM boxpair.outbox_shards)`).Scan(&queued, &leased))
	if queued != 0 || leased != 0 {
		t.Errorf("%d events are queued and %d shards are leased after the end", queued, leased)
	}
}

// TestRelayPublishesToPartitions: a consumer with as many partitions gets the events of a key in
// their order; a consumer with another number would get none.
func TestRelayPublishesToPartitions(t *testing.T) {
	t.Parallel()
	const n, partitions = 20, 2
	database, broker, topic := testenv.Postgres(t), testenv.AMQPURL(t), testenv.Name(t)
	plantEvents(t, database, topic, n)
	config := amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(broker, "c"), Partitions: partitions}
	subscriber, err := amqp.NewSubscriber(config)
	ok(t, err)
	messages, err := subscriber.Subscribe(t.Context(), topic)
	ok(t, err)
	t.Cleanup(func() {
		ok(t, subscriber.Close())
		ok(t, onChannel(broker, func(channel *amqp091.Channel) error {
			for _, queue := range []string{topic + "_c", topic + "_c.1of2", topic + "_c.2of2"} {
				_, err := channel.QueueDelete(queue, false, false, false)
				ok(t, err)
			}
			return channel.ExchangeDelete(topic, false, false)
		}))
	})
	d := start(t, "--outbox", database, "--amqp", broker, "--partitions", fmt.Sprint(partitions), "--lease", "1m")
	for i := range n {
		select {
		case m := <-messages:
			if got := string(m.Payload); got != fmt.Sprint(i) {
				t.Errorf("message %d is %q", i, got)
			}
			m.Ack()
		case <-time.After(time.Minute):
			t.Fatalf("message %d does not arrive: %s", i, d.stop(t))
		}
	}
	d.stop(t)
}

// TestRelayRemovesWhatWasDeliveredLongAgo by default, and keeps the events if another process
// removes them. Neither needs a broker.
func TestRelayRemovesWhatWasDeliveredLongAgo(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	plantEvents(t, database, testenv.Name(t), 3)
	conn, err := pgx.Connect(t.Context(), database)
	ok(t, err)
	defer func() { ok(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	_, err = conn.Exec(t.Context(), `
		WITH gone AS (DELETE FROM boxpair.outbox_queue RETURNING id),
		old AS (SELECT min(id) AS id FROM gone)
		INSERT INTO boxpair.outbox_receipts (relay, event_ids, delivered_at)
		SELECT 'relay', ARRAY[g.id], now() - CASE WHEN g.id = old.id THEN interval '8 days' ELSE interval '6 days' END FROM gone g, old`)
	ok(t, err)
	left := func() (n int) {
		ok(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM boxpair.outbox_events`).Scan(&n))
		return n
	}
	args := []string{"--outbox", database, "--amqp", "amqp://127.0.0.1:1/"}
	kept := start(t, append(args, "--janitor=false", "--retention", "1s")...)
	await(t, kept.status(t, "/readyz", http.StatusServiceUnavailable, `"broker: `))
	if log := kept.stop(t); left() != 3 || strings.Contains(log, "retention pass") {
		t.Errorf("%d events are left without a janitor: %s", left(), log)
	}
	d := start(t, args...)
	await(t, func() error {
		if n := left(); n != 2 {
			return fmt.Errorf("%d events are left, want 2", n)
		}
		return nil
	})
	d.stop(t)
}

// TestRelayThatCannotWorkIsAliveAndNotReady, and gives the reasons, even without an event to send.
func TestRelayThatCannotWorkIsAliveAndNotReady(t *testing.T) {
	t.Parallel()
	const password = "canary-of-a-password"
	wrong, err := url.Parse(testenv.AMQPURL(t))
	ok(t, err)
	wrong.User = url.UserPassword(wrong.User.Username(), password)
	for name, c := range map[string]struct{ broker, why string }{
		"unreachable broker": {"amqp://guest:" + password + "@127.0.0.1:1/", "connection refused"},
		"wrong password":     {wrong.String(), "username or password not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testenv.Postgres(t)
			plantEvents(t, database, testenv.Name(t), 0)
			d := start(t, "--outbox", database, "--amqp", c.broker)
			await(t, d.status(t, "/readyz", http.StatusServiceUnavailable, c.why))
			await(t, d.status(t, "/healthz", http.StatusOK, `"ok":true`))
			_, body := d.get(t, "/readyz")
			if !strings.Contains(body, `"broker: `) {
				t.Errorf("the broker is not named: %s", body)
			}
			if all := body + d.stop(t); strings.Contains(all, password) {
				t.Errorf("the password is shown: %s", all)
			}
		})
	}
}

func TestRelayWithoutItsTablesIsNotReadyAndNamesTheCommand(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	d := start(t, "--outbox", database, "--amqp", testenv.AMQPURL(t))
	await(t, d.status(t, "/readyz", http.StatusServiceUnavailable, `migrations are missing: run \"boxpair migrate up\"`))
	plantEvents(t, database, testenv.Name(t), 0)
	await(t, d.status(t, "/readyz", http.StatusOK, `"ok":true`))
	if log := d.stop(t); !strings.Contains(log, "tables of the outbox are not as they should be") {
		t.Errorf("the log says %s", log)
	}
}

func TestWrongSettingsOfTheRelayAreNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		ok(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := []string{"relay", "--outbox", "postgres://a@127.0.0.1:1/b", "--amqp", "amqp://127.0.0.1:1/"}
	for _, c := range []struct {
		env  []string
		args []string
		want string
	}{
		{nil, []string{"relay"}, "--outbox (or BOXPAIR_OUTBOX_URL): is missing"},
		{nil, []string{"relay"}, "--amqp (or BOXPAIR_AMQP_URL): is missing"},
		{nil, append(good, "--amqp", "http://a/"), "--amqp: want amqp://"},
		{nil, append(good, "--exchanges", "exchange:"), "--exchanges: want topic, queue or exchange:NAME"},
		{nil, append(good, "--declare", "some"), "--declare: want all, check or none"},
		{nil, append(good, "--partitions", "65"), "--partitions (or BOXPAIR_PARTITIONS): 65 is more than 64"},
		{nil, append(good, "--all-headers", "--envelope"), "--all-headers (or BOXPAIR_ALL_HEADERS): excludes --envelope"},
		{nil, append(good, "--batch-size", "2"), "--batch-size (or BOXPAIR_BATCH_SIZE): batches need --envelope"},
		{nil, append(good, "--window", "0"), "--window: want a number above zero"},
		{nil, append(good, "--lease", "1ms"), "LeaseTTL: 1ms is shorter than 100ms"},
		{nil, append(good, "--listen", "127.0.0.1:99999"), "--listen: "},
		{nil, append(good, "--dashboard"), "--dashboard (or BOXPAIR_DASHBOARD): needs --listen"},
		{nil, append(good, "--unready-age", "1m"), "--unready-age (or BOXPAIR_UNREADY_AGE): needs --listen"},
		{nil, append(good, "--unready-dead", "1"), "--unready-dead (or BOXPAIR_UNREADY_DEAD): needs --listen"},
		{nil, append(good, "--listen", "127.0.0.1:0", "--dashboard", "--token", "short"), "--dashboard: ops config: Token: has 5 bytes"},
		{nil, append(good, "--listen", "127.0.0.1:0", "--dashboard", "--token", "0123456789abcdef", "--write"), "--dashboard: --write: --token already makes operators"},
		{[]string{"BOXPAIR_LEASE=soon"}, good, "BOXPAIR_LEASE: want a duration"},
		{nil, append(good, "--config", filepath.Join(dir, "none.yaml")), "--config: open "},
		{nil, append(good, "--config", write("a.yaml", "lease: soon\n")), "a.yaml, line 1: lease: want a duration"},
		{nil, append(good, "--config", write("b.yaml", "# relay\nleese: 2s\n")), "b.yaml, line 2: leese: is not a setting of any command"},
		{nil, append(good, "--config", write("c.yaml", "lease: 1s\nlease: 2s\n")), "lease: is set twice"},
		{nil, append(good, "--config", write("d.yaml", "lease:\n")), "lease: a value is missing"},
		{nil, append(good, "--config", write("e.yaml", "lease: [1s]\n")), "lease: a value is missing"},
		{nil, append(good, "--config", write("f.yaml", "just text\n")), `want lines such as "lease: 10s"`},
		{nil, append(good, "--config", write("g.yaml", "config: h.yaml\n")), "config: is not a setting"},
		{nil, []string{"janitor", "--config", write("h.yaml", "outbox: [postgres://a@h/b, postgres://a@h/c]\namqp: amqp://h/\n")}, "want exactly one, got 2"},
		{nil, append(good, "--route", "analytics=audit.#"), "--route: want NAME=TOPICS@amqp://"},
		{nil, append(good, "--route", "analytics=a*@amqp://h/"), "Topics"},
		{nil, append(good, "--signing-key", "k"), "--signing-key: want ID=FILE"},
		{nil, append(good, "--signing-key", "k="+write("short", "secret")), "Secret: has 6 bytes, fewer than 32"},
		{nil, append(good, "--config", write("i.yaml", "context: prod\ncontexts: {test: {lease: 1s}}\n")), `has no context "prod"`},
		{nil, append(good, "--context", "prod"), "--context: there is no configuration file"},
		{nil, append(good, "--config", write("j.yaml", "contexts: {test: {leese: 1s}}\n"), "--context", "test"), "j.yaml, line 1: leese: is not a setting of any command"},
	} {
		status, _, errs := call(t, c.env, c.args...)
		if status != exitFailed || !strings.Contains(errs, c.want) {
			t.Errorf("%v: %d, %q, want %q", c.args, status, errs, c.want)
		}
	}
}

func TestPasswordInTheWrongPlaceOfTheFileIsNotShown(t *testing.T) {
	t.Parallel()
	const password = "canary-of-a-password"
	file := filepath.Join(t.TempDir(), "relay.yaml")
	for _, text := range []string{
		"postgres://a:" + password + "@h/b: outbox\n", "outbox: postgres://a:" + password + "@h:x/b\n", "postgres://a:" + password + "@h/b\n",
	} {
		ok(t, os.WriteFile(file, []byte(text), 0o600))
		status, out, errs := call(t, nil, "relay", "--config", file)
		if status != exitFailed || strings.Contains(out+errs, password) {
			t.Errorf("%d, %s%s", status, out, errs)
		}
	}
}

func TestFlagsGoBeforeTheEnvironmentAndThatBeforeTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	ok(t, os.WriteFile(file, []byte("lease: 1m\npoll: 1m\nroute-grace: 1m\npoll-only: true\noutbox: [sqlite:a, sqlite:b]\n"), 0o600))
	env := map[string]string{"BOXPAIR_CONFIG": file, "BOXPAIR_LEASE": "2m", "BOXPAIR_POLL": "2m"}
	s := newSettings(&process{stderr: io.Discard, getenv: func(name string) string { return env[name] }}, &secrets{})
	var r relaying
	s.duration(&r.config.LeaseTTL, "lease", "")
	s.duration(&r.config.PollMax, "poll", "")
	s.duration(&r.config.RouteGrace, "route-grace", "")
	s.on(&r.config.PollOnly, "poll-only", "")
	s.urls(&r.outboxes, "outbox", "")
	ok(t, s.flags.Parse([]string{"--lease", "3m"}))
	ok(t, s.complete())
	if c := &r.config; c.LeaseTTL != 3*time.Minute || c.PollMax != 2*time.Minute || c.RouteGrace != time.Minute || !c.PollOnly || len(r.outboxes) != 2 {
		t.Errorf("%v, %v, %v, %v, %d outboxes", c.LeaseTTL, c.PollMax, c.RouteGrace, c.PollOnly, len(r.outboxes))
	}
}

func TestBatchesAreSentOnRequest(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{"": 1, "--envelope": 1, "--envelope --batch-size 8": 8} {
		s := newSettings(&process{stderr: io.Discard, getenv: func(string) string { return "" }}, &secrets{})
		r := settingsOfRelay(t, s, append([]string{relayCommand.name, "--amqp", "amqp://127.0.0.1:1/"}, strings.Fields(args)...))
		p, err := r.publisher(slog.New(slog.DiscardHandler), r.broker, nil)
		ok(t, err)
		if messages, _ := p.BatchLimit(); messages != want {
			t.Errorf("%q: batches of %d", args, messages)
		}
		ok(t, p.Close())
	}
}
