package amqp_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/internal/testenv"
)

func TestMain(m *testing.M) {
	// Watermill's suite merges subscribers by goroutines that hang if a duplicate
	// comes after it has stopped reading.
	const merging = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func"
	ignored := []goleak.Option{goleak.IgnoreAnyFunction(merging + "2"), goleak.IgnoreAnyFunction(merging + "3")}
	goleak.VerifyTestMain(m, append(ignored, goleak.Cleanup(func(code int) {
		if err := sweep(declared.prefixes); err != nil {
			fmt.Fprintln(os.Stderr, "clean up:", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))...)
}

// declared are the prefixes of the exchanges and queues that tests declare on the
// shared broker.
var declared struct {
	sync.Mutex
	prefixes []string
}

// topic returns a topic of the test's own. Exchanges and queues whose names begin
// with it are deleted in the end.
func topic(t testing.TB) string {
	t.Helper()
	name := testenv.Name(t)
	declared.Lock()
	defer declared.Unlock()
	declared.prefixes = append(declared.prefixes, name)
	return name
}

// sweep deletes what has been declared with these prefixes. It is done for many
// tests at once, since rabbitmqctl takes longer to start than most of them.
func sweep(prefixes []string) error {
	if len(prefixes) == 0 {
		return nil
	}
	conn, err := amqp091.Dial(os.Getenv(testenv.AMQP))
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	for what, remove := range map[string]func(string) error{
		"list_queues":    func(name string) error { _, err := ch.QueueDelete(name, false, false, false); return err },
		"list_exchanges": func(name string) error { return ch.ExchangeDelete(name, false, false) },
	} {
		out, err := exec.Command(os.Getenv(testenv.RabbitMQCtl), "-q", what, "name").Output()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		for _, name := range strings.Fields(string(out)) {
			ours := slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
			if !ours {
				continue
			}
			if err := remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}
