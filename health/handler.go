package health

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

const (
	// probeTimeout is how long a request waits for probes.
	probeTimeout = 3 * time.Second
	// statsFor is for how long a state that was read from a database answers further requests.
	statsFor = time.Second
)

// Probe returns the problems that keep a part of a service from working, in words for an operator, and
// none if that part is ready. A Probe may be called from several goroutines at once, and returns when
// ctx ends.
type Probe func(ctx context.Context) []string

// Handler answers the probes of an orchestrator such as Kubernetes, in one line of a service:
//
//	mux.Handle("/", health.Handler(nil, health.RelayReady(relay, 0), health.SchemaReady("outbox", store)))
//
// GET /healthz answers 200 while live returns true, and always if live is nil. It is for liveness:
// the orchestrator restarts a process that answers 503. GET /readyz answers 200 if every probe is
// without problems, and otherwise 503. The body of both is a JSON object:
//
//	{"ok":false,"problems":["database: connection refused"]}
//
// All probes are asked at once, and a probe without an answer after 3 s is a problem. Other paths
// are answered with 404. The handler asks for no password: serve it only to your monitoring.
func Handler(live func() bool, ready ...Probe) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, live == nil || live(), []string{})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
		defer cancel()
		problems := ask(ctx, ready)
		respond(w, len(problems) == 0, problems)
	})
	return mux
}

// ask asks all probes at once, and returns their problems in the order of the probes.
func ask(ctx context.Context, probes []Probe) []string {
	answers := make([]chan []string, len(probes))
	for i, probe := range probes {
		answers[i] = make(chan []string, 1) // a late answer must not block
		go func() { answers[i] <- probe(ctx) }()
	}
	problems := []string{}
	for _, answer := range answers {
		select {
		case list := <-answer:
			problems = append(problems, list...)
		case <-ctx.Done():
			select {
			case list := <-answer: // in time, but after the end of another one
				problems = append(problems, list...)
			default:
				problems = append(problems, "probe: gave no answer within "+probeTimeout.String())
			}
		}
	}
	return problems
}

func respond(w http.ResponseWriter, ok bool, problems []string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(struct { // the client may be gone
		OK       bool     `json:"ok"`
		Problems []string `json:"problems"`
	}{ok, problems})
}

// RelayReady is [Relay] as a probe: a relay that runs, whose database and connections answer, and
// whose routes work. It knows nothing of lag and of dead events; see [OutboxReady].
func RelayReady(r interface{ Health() relay.Health }, poll time.Duration, connections ...func() Connection) Probe {
	return func(context.Context) []string {
		list := make([]Connection, len(connections))
		for i, connection := range connections {
			list[i] = connection()
		}
		return Relay(r.Health(), poll, list...)
	}
}

// SchemaReady is a probe of the tables that a store uses: they can be reached, and have all
// migrations. name begins the problem.
func SchemaReady(name string, store interface {
	CheckSchema(ctx context.Context) error
}) Probe {
	return fresh(func(ctx context.Context) []string {
		if err := store.CheckSchema(ctx); err != nil {
			return []string{name + ": " + err.Error()}
		}
		return nil
	})
}

// RouterReady is a probe of a Watermill router: it runs. running is what its Running method returns.
func RouterReady(running <-chan struct{}) Probe {
	return func(context.Context) []string {
		select {
		case <-running:
			return nil
		default:
			return []string{"router: does not run yet"}
		}
	}
}

// OutboxReady is a probe of the lag and the dead events of an outbox: what makes its report
// unhealthy, by the bounds of c, is a problem. What makes it degraded is none. name begins the
// problem.
//
// Most services leave this probe away. A service whose outbox lags still takes orders; taken out of
// service, it does not send a single event sooner. It is for processes whose only work is to send,
// where a rollout should stop if events do not get through. Never use it for liveness. The database
// is read at most once a second, whatever the number of requests.
func OutboxReady(name string, c *Check, o interface {
	Stats(ctx context.Context) (outbox.Stats, error)
}) Probe {
	return fresh(func(ctx context.Context) []string {
		stats, err := o.Stats(ctx)
		if err != nil {
			return []string{name + ": " + err.Error()}
		}
		return c.Outbox(stats).unhealthy(name)
	})
}

// InboxReady is [OutboxReady] for the inbox of a consumer.
func InboxReady(name string, c *Check, h interface {
	Stats(ctx context.Context) (inbox.Stats, error)
}) Probe {
	return fresh(func(ctx context.Context) []string {
		stats, err := h.Stats(ctx)
		if err != nil {
			return []string{name + ": " + err.Error()}
		}
		return c.Inbox(stats).unhealthy(name)
	})
}

// unhealthy returns the problems of r that make it unhealthy.
func (r Report) unhealthy(name string) []string {
	var list []string
	for _, problem := range r.Problems {
		if text, is := strings.CutPrefix(problem, string(Unhealthy)+": "); is {
			list = append(list, name+": "+text)
		}
	}
	return list
}

// fresh returns a probe that has probe asked by one goroutine at a time, and keeps its answer for
// statsFor: an endpoint without a password must not become many reads of a database.
func fresh(probe Probe) Probe {
	type answered struct {
		problems []string
		at       time.Time
	}
	turn := make(chan answered, 1)
	turn <- answered{}
	return func(ctx context.Context) []string {
		var last answered
		select {
		case last = <-turn:
		case <-ctx.Done():
			return []string{"database: gave no answer to an earlier probe yet"}
		}
		defer func() { turn <- last }()
		if last.at.IsZero() || time.Since(last.at) >= statsFor {
			last = answered{probe(ctx), time.Now()}
			if ctx.Err() != nil { // the answer may be about this request only
				last.at = time.Time{}
			}
		}
		return last.problems
	}
}
