package testenv

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	first, second := connect(t, Postgres(t)), connect(t, Postgres(t))
	for _, conn := range []*pgx.Conn{first, second} {
		if _, err := conn.Exec(t.Context(), "CREATE TABLE here (id int)"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDatabaseIsDroppedAfterTheTestThoughInUse(t *testing.T) {
	t.Parallel()
	admin := connect(t, need(t, DatabaseURL))
	var open *pgx.Conn
	var name string
	t.Run("test", func(t *testing.T) {
		var err error
		if open, err = pgx.Connect(t.Context(), Postgres(t)); err != nil {
			t.Fatal(err)
		}
		if err := open.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
			t.Fatal(err)
		}
	})
	defer open.Close(context.Background())
	var there bool
	err := admin.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there)
	if err != nil || there {
		t.Fatalf("%s is there: %t, %v", name, there, err)
	}
}

func TestDatabaseTakesThePlaceOfTheOneInTheURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://u:p@h:1/old?sslmode=disable":  "postgres://u:p@h:1/new?sslmode=disable",
		"postgresql://u@h":                        "postgresql://u@h/new",
		"postgres://h/?dbname=old&database=old&a": "postgres://h/new?a=",
		"host=h dbname=old":                       "",
		"mysql://h/old":                           "",
	} {
		got, err := withDatabase(in, "new")
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestNamesAreUniqueShortAndPlain(t *testing.T) {
	t.Parallel()
	plain := regexp.MustCompile(`^[a-z][a-z0-9_]{1,31}$`)
	seen := map[string]bool{}
	for _, test := range []string{
		"a", "42", "Größe!", "with/some slashes", "ends with _", strings.Repeat("long", 50), "tail-of-many-00000000000000000000",
	} {
		t.Run(test, func(t *testing.T) {
			for range 100 {
				name := Name(t)
				if !plain.MatchString(name) {
					t.Fatalf("%q is not plain", name)
				}
				if seen[name] {
					t.Fatalf("%q again", name)
				}
				seen[name] = true
			}
		})
	}
}

func TestCtlReachesTheNodeBehindTheURL(t *testing.T) {
	t.Parallel()
	name := Name(t)
	conn, err := amqp.Dial(AMQPURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(name, false, true, true, false, nil); err != nil {
		t.Fatal(err)
	}
	if queues := Ctl(t, "list_queues", "name"); !strings.Contains(queues, name) {
		t.Fatalf("%s is not in\n%s", name, queues)
	}
}

func TestPrivateNodeIsNotTheSharedOne(t *testing.T) {
	t.Parallel()
	node := PrivateRabbitMQ(t)
	if node.URL() == AMQPURL(t) {
		t.Fatal("one address for both")
	}
	node.Ctl(t, "set_vm_memory_high_watermark", "0.000001")
	if alarms := node.Ctl(t, "eval", "rabbit_alarm:get_alarms()."); !strings.Contains(alarms, "memory") {
		t.Fatalf("no alarm on the private node: %s", alarms)
	}
	if alarms := Ctl(t, "eval", "rabbit_alarm:get_alarms()."); strings.Contains(alarms, "memory") {
		t.Fatalf("alarm on the shared node: %s", alarms)
	}
}

func TestPrivatePostgresIsNotTheSharedOne(t *testing.T) {
	t.Parallel()
	private := PrivatePostgres(t)
	private.Crash()
	connect(t, Postgres(t))
	if err := private.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	connect(t, private.URL())
}

func TestDatabaseCanBeDumped(t *testing.T) {
	t.Parallel()
	url := Postgres(t)
	if _, err := connect(t, url).Exec(t.Context(), "CREATE TABLE dumped (id int)"); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(PGTool(t, "pg_dump"), "--schema-only", url).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "CREATE TABLE public.dumped") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Not parallel: it changes the environment.
func TestTestWithoutServersFailsAndSaysWhatToRun(t *testing.T) {
	for variable, call := range map[string]func(testing.TB){
		DatabaseURL: func(t testing.TB) { Postgres(t) },
		AMQP:        func(t testing.TB) { AMQPURL(t) },
		RabbitMQCtl: func(t testing.TB) { Ctl(t, "status") },
	} {
		t.Setenv(variable, "")
		got := failure(t, call)
		if !strings.Contains(got, variable+" is not set") || !strings.Contains(got, "make test") {
			t.Errorf("%s: failed with %q", variable, got)
		}
	}
	t.Setenv(PostgresBin, t.TempDir())
	if got := failure(t, func(t testing.TB) { PGTool(t, "pg_dump") }); !strings.Contains(got, PostgresBin) {
		t.Errorf("failed with %q", got)
	}
}

// failing records how a test fails instead of failing.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func failure(t *testing.T, call func(testing.TB)) string {
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		call(f)
	}()
	<-done
	return f.message
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
