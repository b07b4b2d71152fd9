package matrix

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/servers"
)

func TestMain(m *testing.M) {
	child.Main()
	began := time.Now()
	code := m.Run()
	for _, stop := range stops {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, "matrix: close servers:", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		// The proxy's own goroutines stay where a connection was cut while they handed a chunk on.
		const proxy = "github.com/Shopify/toxiproxy/v2"
		if err := goleak.Find(
			goleak.IgnoreAnyFunction(proxy+".(*ToxicLink).read"), goleak.IgnoreAnyFunction(proxy+".(*ToxicLink).write"),
			goleak.IgnoreAnyFunction(proxy+"/toxics.(*ToxicStub).Run"),
		); err != nil {
			fmt.Fprintln(os.Stderr, "matrix:", err)
			code = 1
		}
	}
	if !tally.print(time.Since(began)) {
		code = max(code, 1)
	}
	os.Exit(code)
}

// tally counts cells.
var tally cells

type cells struct {
	mu     sync.Mutex
	run    int
	failed []string
}

func (c *cells) add(name string, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run++
	if failed {
		c.failed = append(c.failed, name)
	}
}

// print prints the result of the matrix in two lines, and tells whether there were cells and all
// passed.
func (c *cells) print(took time.Duration) bool {
	slices.Sort(c.failed)
	line, _ := json.Marshal(struct {
		Cells   int      `json:"cells"`
		Passed  int      `json:"passed"`
		Failed  []string `json:"failed"`
		Seconds float64  `json:"seconds"`
	}{c.run, c.run - len(c.failed), append([]string{}, c.failed...), took.Round(time.Millisecond).Seconds()})
	fmt.Printf("%s\nmatrix: %d cells run, %d passed\n", line, c.run, c.run-len(c.failed))
	return c.run > 0 && len(c.failed) == 0
}

// A server is started by the first test that needs it, and stopped at the end.
var (
	stopsMu sync.Mutex
	stops   []func() error
)

func started(cfg servers.Config) func() (*servers.Servers, error) {
	return sync.OnceValues(func() (*servers.Servers, error) {
		s, err := servers.Start(context.Background(), cfg)
		if err == nil {
			stopLater(s.Close)
		}
		return s, err
	})
}

// stopLater stops a server when all tests have ended.
func stopLater(stop func() error) {
	stopsMu.Lock()
	defer stopsMu.Unlock()
	stops = append(stops, stop)
}

// calm are servers without faults of the whole server.
var calm = started(servers.Config{Settings: []string{"max_connections=1000"}})
