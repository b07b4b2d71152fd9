package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(orphanEnv) != "" {
		orphan()
	}
	goleak.VerifyTestMain(m)
}

func TestTwoPostgresServersRunSideBySideAndLeaveNothing(t *testing.T) {
	t.Parallel()
	first, second := postgres(t), postgres(t)

	execute(t, first.URL(), "CREATE TABLE here (id int)")
	execute(t, second.URL(), "CREATE TABLE here (id int)") // would exist already
	closes(t, &first.server)
	closes(t, &second.server)
}

func TestPostgresAllowsWhatTestsNeed(t *testing.T) {
	t.Parallel()
	conn := connect(t, postgres(t).URL())
	for setting, want := range map[string]string{
		"wal_level": "logical", "max_connections": "300", "max_prepared_transactions": "10",
		"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "server_encoding": "UTF8",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), "SHOW "+setting).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %q", setting, got, err, want)
		}
	}
}

func TestPostgresRefusesOtherUsersOfTheMachine(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(postgres(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("postgres", "guess")
	if conn, err := pgx.Connect(t.Context(), u.String()); err == nil {
		conn.Close(t.Context())
		t.Fatal("a wrong password was accepted")
	}
}

func TestCrashedPostgresComesBackWithWhatWasCommitted(t *testing.T) {
	t.Parallel()
	p := postgres(t)
	execute(t, p.URL(), "CREATE TABLE kept AS SELECT 42 AS n")

	p.Crash()
	if conn, err := pgx.Connect(t.Context(), p.URL()); err == nil {
		conn.Close(t.Context())
		t.Fatal("a crashed server answers")
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := connect(t, p.URL()).QueryRow(t.Context(), "SELECT n FROM kept").Scan(&n); err != nil || n != 42 {
		t.Fatalf("read %d, %v", n, err)
	}
}

func TestStoppedPostgresComesBack(t *testing.T) {
	t.Parallel()
	p := postgres(t)
	execute(t, p.URL(), "CREATE TABLE kept AS SELECT 42 AS n")
	p.Stop()
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, p.URL(), "SELECT n FROM kept")
}

func TestPromotedStandbyLacksWhatItWasNotSent(t *testing.T) {
	t.Parallel()
	p := postgres(t)
	execute(t, p.URL(), "CREATE TABLE numbers AS SELECT 1 AS n")
	s, err := p.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.Stop()
	execute(t, p.URL(), "INSERT INTO numbers VALUES (2)")
	p.Crash()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, s.URL(), "SELECT pg_promote()")
	execute(t, s.URL(), "INSERT INTO numbers VALUES (3)")
	var found []int
	if err := connect(t, s.URL()).QueryRow(t.Context(), "SELECT array_agg(n ORDER BY n) FROM numbers").Scan(&found); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(found) != "[1 3]" {
		t.Fatalf("the promoted standby has %v", found)
	}
}

func TestPostgresTakesSettingsAndEnvironment(t *testing.T) {
	t.Parallel()
	p, err := StartPostgresWith(t.Context(), PostgresConfig{Settings: []string{"max_connections=42"}, Env: []string{"PGTZ=Asia/Tokyo"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	var most string
	if err := connect(t, p.URL()).QueryRow(t.Context(), "SHOW max_connections").Scan(&most); err != nil || most != "42" {
		t.Fatalf("max_connections is %q (%v)", most, err)
	}
}

func TestPausedNodeAnswersWhenResumed(t *testing.T) {
	t.Parallel()
	r := rabbitMQ(t)
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	for deadline, silent := time.Now().Add(time.Minute), false; !silent; { // on a busy machine, its threads stop one after the other
		go func() { answered <- r.answers(t.Context()) }()
		select {
		case err := <-answered:
			if time.Now().After(deadline) {
				t.Fatalf("a paused node answers: %v", err)
			}
		case <-time.After(200 * time.Millisecond):
			silent = true
		}
	}
	if err := r.Resume(); err != nil {
		t.Fatal(err)
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	err := <-answered // an error if the dial has lasted too long
	for deadline := time.Now().Add(time.Minute); err != nil; err = r.answers(t.Context()) {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-again.C
	}
}

func TestCrashedNodeComesBackWithWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	r := rabbitMQ(t)
	ch := channel(t, r.URL())
	if _, err := ch.QueueDeclare("kept", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", "kept", true, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("42")})
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := confirm.WaitContext(t.Context()); !ok || err != nil {
		t.Fatalf("confirmed: %t, %v", ok, err)
	}
	if err := r.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}

	r.Crash()
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	msg, ok, err := channel(t, r.URL()).Get("kept", true)
	if err != nil || !ok || string(msg.Body) != "42" {
		t.Fatalf("got %q, %t, %v", msg.Body, ok, err)
	}
}

func TestTakenPortEndsTheStartWithAnErrorThatIsTriedAgain(t *testing.T) {
	t.Parallel()
	p := postgres(t)
	p.Crash()
	u, err := url.Parse(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	if err := p.Start(t.Context()); !errors.Is(err, errExited) {
		t.Fatalf("got %v, want %v", err, errExited)
	}
	l.Close()
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestProbeOfAnEndedServerIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	p, err := start(exec.Command("sleep", "0.2"), filepath.Join(t.TempDir(), "log"), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	err = p.await(t.Context(), func(ctx context.Context) error {
		<-ctx.Done() // as with another server on its port that answers nothing
		return ctx.Err()
	})
	if !errors.Is(err, errExited) {
		t.Errorf("got %v, want %v", err, errExited)
	}
}

func TestServerThatExitsEarlyIsTriedAgainAndNoOther(t *testing.T) {
	t.Parallel()
	other := errors.New("disk full")
	for name, c := range map[string]struct {
		errs []error
		want int
	}{
		"starts at once":          {[]error{nil}, 1},
		"loses a port, then runs": {[]error{errExited, nil}, 2},
		"fails for good":          {[]error{other}, 1},
		"never runs":              {[]error{errExited, errExited, errExited, errExited, errExited}, attempts},
	} {
		calls := 0
		running, err := retry("it", func() (*server, error) { calls++; return &server{}, c.errs[calls-1] })
		if calls != c.want {
			t.Errorf("%s: started %d times, want %d", name, calls, c.want)
		}
		if (err == nil) != (c.errs[calls-1] == nil) || (running != nil) != (err == nil) {
			t.Errorf("%s: got %v, %v", name, running, err)
		}
	}
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := StartPostgres(ctx); err == nil {
		p.Close()
		t.Fatal("started under a cancelled context")
	}
	if r, err := StartRabbitMQ(ctx); err == nil {
		r.Close()
		t.Fatal("started under a cancelled context")
	}
}

func TestTwoNodesRunSideBySideAndLeaveNothing(t *testing.T) {
	t.Parallel()
	first, second := rabbitMQ(t), rabbitMQ(t)
	if _, err := channel(t, first.URL()).QueueDeclare("here", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := channel(t, second.URL()).QueueDeclarePassive("here", true, false, false, false, nil); err == nil {
		t.Fatal("a queue of one node is seen on the other")
	}
	for _, r := range []*RabbitMQ{first, second} {
		closes(t, &r.server, r.ports.amqp, r.ports.dist, r.ports.epmd)
	}
}

// closes closes a server and checks that neither files, nor processes, nor open
// ports are left of it.
func closes(t *testing.T, s *server, ports ...int) {
	t.Helper()
	seen(t, s.dir)
	if err := errors.Join(s.Close(), s.Close()); err != nil { // twice is harmless
		t.Error(err)
	}
	gone(t, s.dir)
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", s.dir, err)
	}
	for _, port := range ports {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(loopback), Port: port})
		if err != nil {
			t.Errorf("port %d: %v", port, err)
			continue
		}
		l.Close()
	}
}

func postgres(t *testing.T) *Postgres {
	t.Helper()
	p, err := StartPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func rabbitMQ(t *testing.T) *RabbitMQ {
	t.Helper()
	r, err := StartRabbitMQ(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, url, statement string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func channel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}
