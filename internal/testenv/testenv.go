package testenv

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/testenv/service"
)

// The environment variables with the addresses of the servers.
const (
	DatabaseURL = "TEST_DATABASE_URL" // a PostgreSQL role that may create databases
	AMQP        = "TEST_AMQP_URL"     // a RabbitMQ
	RabbitMQCtl = "TEST_RABBITMQCTL"  // a program: rabbitmqctl for that RabbitMQ
	PostgresBin = "TEST_PG_BIN"       // a directory with PostgreSQL's client programs

	NewerRabbitMQ = "TEST_RABBITMQ_NEWER" // a directory with the programs of a newer RabbitMQ than that of private nodes; may be missing
)

// Tests without a logger of their own stay silent: libraries would log to slog.Default(), and fill
// the output of the tests.
func init() {
	if testing.Testing() {
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
}

// adminTimeout bounds the administration of a server around a test. On a disk that all tests share a
// new virtual host has taken more than a minute.
const adminTimeout = 4 * time.Minute

// Postgres creates an empty database and returns its URL. The database is dropped at the end of the
// test, together with its open connections.
func Postgres(t testing.TB) string {
	t.Helper()
	admin := need(t, DatabaseURL)
	name := "boxpair_test_" + random()
	target, err := withDatabase(admin, name)
	if err != nil {
		t.Fatalf("%s: %v", DatabaseURL, err)
	}
	// template0 takes no connections, so a copy of it waits for no other session.
	if err := execute(admin, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		t.Fatalf("create a database for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := execute(admin, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return target
}

// AMQPURL returns the address of the RabbitMQ shared by all tests.
func AMQPURL(t testing.TB) string {
	t.Helper()
	return need(t, AMQP)
}

// Name returns a unique lower-case name: the end of the test's own name and random digits, at most
// 32 characters out of a–z, 0–9 and _, starting with a letter. The name needs no quotes as the name
// of a queue, a schema or a file.
func Name(t testing.TB) string {
	t.Helper()
	const limit = 20
	var b strings.Builder
	for _, r := range strings.ToLower(t.Name()) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if s := b.String(); s != "" && !strings.HasSuffix(s, "_") {
			b.WriteByte('_')
		}
	}
	name := b.String()
	name = strings.TrimLeft(name[max(0, len(name)-limit):], "_0123456789")
	if name == "" {
		name = "t"
	}
	return strings.TrimRight(name, "_") + "_" + random()[:10]
}

// Ctl runs rabbitmqctl against the shared RabbitMQ and returns its output. A call takes about half
// a second. Commands that concern the whole node belong on [PrivateRabbitMQ].
func Ctl(t testing.TB, args ...string) string {
	t.Helper()
	return run(t, need(t, RabbitMQCtl), args)
}

// PGTool returns the path of one of PostgreSQL's client programs, such as pg_dump, in a version
// that fits the server behind [Postgres].
func PGTool(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv(PostgresBin)
	if dir == "" {
		dir = service.PostgresBin() // for a server of the user's own
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is needed: set %s to the directory that holds it, or run: make test", name, PostgresBin)
	}
	return path
}

// PrivatePostgres starts a PostgreSQL server for this test alone, to be crashed
// and restarted. It takes about two seconds, and is closed when the test ends.
func PrivatePostgres(t testing.TB) *service.Postgres {
	t.Helper()
	p, err := service.StartPostgres(t.Context())
	return private(t, p, err)
}

// PrivatePostgresTLS is [PrivatePostgres] with a server that takes no connection
// without TLS.
func PrivatePostgresTLS(t testing.TB, c service.TLS) *service.Postgres {
	t.Helper()
	p, err := service.StartPostgresWith(t.Context(), service.PostgresConfig{TLS: &c})
	return private(t, p, err)
}

// PgBouncer starts a pooler in transaction mode in front of a database, for this test alone, and
// returns the database's URL through it. The pooler is closed when the test ends.
func PgBouncer(t testing.TB, database string) string {
	t.Helper()
	b, err := service.StartPgBouncer(t.Context(), database)
	return private(t, b, err).URL()
}

// PrivateRabbitMQ starts a RabbitMQ node for this test alone, to be crashed,
// restarted or alarmed. It takes about six seconds, and is closed when the test
// ends.
func PrivateRabbitMQ(t testing.TB) *Node {
	t.Helper()
	r, err := service.StartRabbitMQ(t.Context())
	return &Node{RabbitMQ: private(t, r, err)}
}

// PrivateRabbitMQTLS is [PrivateRabbitMQ] with a node that refuses connections without TLS.
func PrivateRabbitMQTLS(t testing.TB, c service.TLS) *Node {
	t.Helper()
	r, err := service.StartRabbitMQWith(t.Context(), service.RabbitMQConfig{TLS: &c})
	return &Node{RabbitMQ: private(t, r, err)}
}

// PrivateRabbitMQManagement is [PrivateRabbitMQ] with the management API.
func PrivateRabbitMQManagement(t testing.TB) *Node {
	t.Helper()
	r, err := service.StartRabbitMQWith(t.Context(), service.RabbitMQConfig{Management: true})
	return &Node{RabbitMQ: private(t, r, err)}
}

// Node is a RabbitMQ node that belongs to one test.
type Node struct{ *service.RabbitMQ }

// Ctl runs rabbitmqctl against this node and returns its output.
func (n *Node) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	return run(t, n.RabbitMQ.Ctl(), args)
}

// Upgrade makes the next start of the node use the version in [NewerRabbitMQ], or the node's own
// version if the variable is not set.
func (n *Node) Upgrade(t testing.TB) {
	t.Helper()
	if bin := os.Getenv(NewerRabbitMQ); bin != "" {
		if err := n.Use(bin); err != nil {
			t.Fatal(err)
		}
	}
}

// private returns a server, closes it at the end of the test, and fails the test if err is not nil.
func private[S interface{ Close() error }](t testing.TB, s S, err error) S {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the test's server: %v", err)
		}
	})
	return s
}

// need returns the value of a required environment variable.
func need(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set. Run the tests with: make test\n"+
			"or one package with: go run ./internal/testenv/cmd/testenv -- go test ./some/package", name)
	}
	return value
}

func run(t testing.TB, program string, args []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), adminTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// execute runs one statement on a connection of its own. It takes no context, since the test's
// context ends before the test's clean-up.
func execute(url, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	if closed := conn.Close(ctx); err == nil {
		err = closed
	}
	return err
}

// withDatabase returns address with another name of the database.
func withDatabase(address, name string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", fmt.Errorf("must be a URL that begins with postgres://")
	}
	u.Path = "/" + name
	q := u.Query()
	q.Del("dbname") // would win over the path
	q.Del("database")
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // PostgreSQL takes a plus for a plus
	return u.String(), nil
}

func random() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
