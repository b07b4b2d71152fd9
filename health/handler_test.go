package health_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// get asks a handler for a path.
func get(t *testing.T, handler http.Handler, path string) (status int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	if kind := w.Header().Get("Content-Type"); w.Code != http.StatusNotFound && kind != "application/json" {
		t.Errorf("%s is %s", path, kind)
	}
	return w.Code, strings.TrimSpace(w.Body.String())
}

func problem(text string) health.Probe {
	return func(context.Context) []string { return []string{text} }
}

func TestEndpointsTellWhetherAProcessLivesAndIsReady(t *testing.T) {
	t.Parallel()
	dead := func() bool { return false }
	for name, c := range map[string]struct {
		handler http.Handler
		path    string
		status  int
		body    string
	}{
		"nothing to ask":           {health.Handler(nil), "/readyz", 200, `{"ok":true,"problems":[]}`},
		"alive by default":         {health.Handler(nil, problem("x")), "/healthz", 200, `{"ok":true,"problems":[]}`},
		"dead":                     {health.Handler(dead), "/healthz", 503, `{"ok":false,"problems":[]}`},
		"dead is not unready":      {health.Handler(dead), "/readyz", 200, `{"ok":true,"problems":[]}`},
		"problems in their order":  {health.Handler(nil, problem("a"), func(context.Context) []string { return nil }, problem("b")), "/readyz", 503, `{"ok":false,"problems":["a","b"]}`},
		"another path":             {health.Handler(nil), "/", 404, "404 page not found"},
		"router that does not run": {health.Handler(nil, health.RouterReady(make(chan struct{}))), "/readyz", 503, `{"ok":false,"problems":["router: does not run yet"]}`},
		"relay that does not run":  {health.Handler(nil, health.RelayReady(state{}, 0)), "/readyz", 503, `{"ok":false,"problems":["relay: does not run"]}`},
		"broker without an answer": {
			health.Handler(nil, health.RelayReady(state{Running: true, LastRead: time.Now()}, 0, func() health.Connection { return health.Connection{Name: "broker"} })),
			"/readyz", 503, `{"ok":false,"problems":["broker: is not connected yet"]}`,
		},
		"missing migrations": {health.Handler(nil, health.SchemaReady("outbox", schema{errors.New("migrations are missing")})), "/readyz", 503, `{"ok":false,"problems":["outbox: migrations are missing"]}`},
		"complete tables":    {health.Handler(nil, health.SchemaReady("outbox", schema{})), "/readyz", 200, `{"ok":true,"problems":[]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if status, body := get(t, c.handler, c.path); status != c.status || body != c.body {
				t.Errorf("%d %s, want %d %s", status, body, c.status, c.body)
			}
		})
	}
	running := make(chan struct{})
	close(running)
	if status, _ := get(t, health.Handler(nil, health.RouterReady(running)), "/readyz"); status != 200 {
		t.Errorf("a router that runs is %d", status)
	}
}

type state relay.Health

func (s state) Health() relay.Health { return relay.Health(s) }

type schema struct{ err error }

func (s schema) CheckSchema(context.Context) error { return s.err }

type outboxState struct {
	reads atomic.Int64
	stats outbox.Stats
	err   error
	wait  <-chan struct{}
}

func (s *outboxState) Stats(ctx context.Context) (outbox.Stats, error) {
	s.reads.Add(1)
	if s.wait != nil {
		select {
		case <-s.wait:
		case <-ctx.Done():
			return outbox.Stats{}, context.Cause(ctx)
		}
	}
	return s.stats, s.err
}

type inboxState inbox.Stats

func (s inboxState) Stats(context.Context) (inbox.Stats, error) { return inbox.Stats(s), nil }

func TestLagAndDeadLettersAreProblemsOnlyIfAskedFor(t *testing.T) {
	t.Parallel()
	check, err := health.New(health.Config{UnhealthyDead: 5})
	if err != nil {
		t.Fatal(err)
	}
	for want, probe := range map[string]health.Probe{
		`[]`: health.OutboxReady("shop", check, &outboxState{stats: outbox.Stats{Dead: 4, OldestPending: 5 * time.Minute}}),
		`["shop: the oldest pending event is 11m0s old","shop: dead events: 5"]`: health.OutboxReady("shop", check, &outboxState{stats: outbox.Stats{Dead: 5, OldestPending: 11 * time.Minute}}),
		`["shop: down"]`: health.OutboxReady("shop", check, &outboxState{err: errors.New("down")}),
		`["stock/ship: messages and effects for an operator: 6"]`: health.InboxReady("stock/ship", check, inboxState{Dead: 6}),
	} {
		if _, body := get(t, health.Handler(nil, probe), "/readyz"); !strings.Contains(body, `"problems":`+want+"}") {
			t.Errorf("got %s, want %s", body, want)
		}
	}
}

func TestManyRequestsReadADatabaseOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		check, err := health.New(health.Config{})
		if err != nil {
			t.Fatal(err)
		}
		o := &outboxState{}
		handler := health.Handler(nil, health.OutboxReady("shop", check, o))
		for range 10 {
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					if status, body := get(t, handler, "/readyz"); status != 200 {
						t.Errorf("%d %s", status, body)
					}
				})
			}
			all.Wait()
			time.Sleep(500 * time.Millisecond)
		}
		if n := o.reads.Load(); n != 5 {
			t.Errorf("%d reads in 5 s", n)
		}
	})
}

func TestProbeWithoutAnAnswerIsAProblem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		check, err := health.New(health.Config{})
		if err != nil {
			t.Fatal(err)
		}
		free := make(chan struct{})
		stuck := func(context.Context) []string {
			<-free
			return nil
		}
		handler := health.Handler(nil, stuck, problem("b"), health.OutboxReady("shop", check, &outboxState{wait: free}))
		began := time.Now()
		status, body := get(t, handler, "/readyz")
		if status != 503 || !strings.HasPrefix(body, `{"ok":false,"problems":["probe: gave no answer within 3s","b",`) || time.Since(began) != 3*time.Second {
			t.Errorf("%d %s after %v", status, body, time.Since(began))
		}
		close(free)
	})
}
