package prometheus_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/telemetry/prometheus"
	"github.com/boxpair/boxpair/transport"
)

// all is an outbox, a relay, a janitor and a publisher.
type all struct{ message.Publisher }

func (all) Stats(context.Context) (outbox.Stats, error)       { return outbox.Stats{}, nil }
func (all) Pauses(context.Context) ([]control.Pause, error)   { return nil, nil }
func (all) Totals() producer.JanitorReport                    { return producer.JanitorReport{} }
func (all) Publish(topic string, _ ...*message.Message) error { return nil }
func (all) Health() relay.Health                              { return relay.Health{LastRead: time.Now()} }

type inboxOf struct{}

func (inboxOf) Effects() effects.Counters                  { return effects.Counters{} }
func (inboxOf) Name() string                               { return "s/c" }
func (inboxOf) Counters() consumer.Counters                { return consumer.Counters{} }
func (inboxOf) Stats(context.Context) (inbox.Stats, error) { return inbox.Stats{}, nil }

// exported returns the labels of every metric that a service exports which uses all of telemetry.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	metrics, err := prometheus.New(prometheus.Config{OnlyInstruments: true})
	ok(t, err)
	tel, err := telemetry.New(telemetry.Config{MeterProvider: metrics.Provider()})
	ok(t, err)
	ok(t, tel.WatchOutbox("o", all{}))
	ok(t, tel.WatchJanitor("o", all{}))
	ok(t, tel.WatchRelay("r", all{}))
	ok(t, tel.WatchConsumer(inboxOf{}))
	tel.Audited(t.Context(), &audit.Report{})
	msg := message.NewMessage(uuid.NewString(), nil)
	msg.Metadata[transport.MetaStamp] = "2026-01-31T12:00:00Z"
	ok(t, tel.Publisher(all{}).Publish("a", msg))
	failing := tel.Middleware("s/c")(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no") })
	if _, err := failing(msg); err == nil {
		t.Fatal("no error")
	}
	_, _, text := scrape(t, metrics, "text/plain")
	ok(t, tel.Shutdown(t.Context()))
	labels := make(map[string][]string)
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)(?:\{([^}]*)\})? `).FindAllStringSubmatch(text, -1) {
		for _, l := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels[m[1]], l[1]) {
				labels[m[1]] = append(labels[m[1]], l[1])
			}
		}
		if labels[m[1]] == nil {
			labels[m[1]] = []string{}
		}
	}
	return labels
}

var (
	metricName = regexp.MustCompile(`\b(?:boxpair|outbox)_[a-z_]+`)
	selector   = regexp.MustCompile(`\b((?:boxpair|outbox)_[a-z_]+)\{([^}]*)\}`)
	labelName  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\bby \(([^)]*)\)`)
	legendName = regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`)
	quoted     = regexp.MustCompile(`"[^"]*"`)
)

// scraped are the labels that a Prometheus server adds to what it scrapes, and that of buckets.
var scraped = []string{"job", "instance", "le"}

// checkExpr checks that the metrics of an expression exist with the labels that it asks for, and
// returns the metrics.
func checkExpr(t *testing.T, known map[string][]string, where, expr, legend string) []string {
	t.Helper()
	var used, labels []string
	labels = append(labels, scraped...)
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		used = append(used, m[1])
		for _, l := range labelName.FindAllStringSubmatch(quoted.ReplaceAllString(m[2], ""), -1) {
			if !slices.Contains(known[m[1]], l[1]) && !slices.Contains(scraped, l[1]) {
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			}
		}
	}
	bare := selector.ReplaceAllString(grouping.ReplaceAllString(expr, ""), "")
	used = append(used, metricName.FindAllString(quoted.ReplaceAllString(bare, ""), -1)...)
	for _, name := range used {
		if _, there := known[name]; !there {
			t.Errorf("%s: nothing is called %s", where, name)
		}
		labels = append(labels, known[name]...)
	}
	var wanted []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		wanted = append(wanted, regexp.MustCompile(`[a-z_]+`).FindAllString(m[1], -1)...)
	}
	for _, m := range legendName.FindAllStringSubmatch(legend, -1) {
		wanted = append(wanted, m[1])
	}
	for _, l := range wanted {
		if !slices.Contains(labels, l) {
			t.Errorf("%s: no metric of %s has the label %s", where, expr, l)
		}
	}
	if len(used) == 0 {
		t.Errorf("%s: %s asks for no metric", where, expr)
	}
	return used
}

// dashboard is the part of a dashboard of Grafana that is checked.
type dashboard struct {
	UID, Title string
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ Type, UID string }
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct {
		Defaults struct {
			Unit       string
			Thresholds struct{ Steps []json.RawMessage }
		}
	}
	Targets []struct{ Expr, LegendFormat, RefID string }
}

// TestDashboardsShowWhatIsMeasured looks up every metric and label of the dashboards among those that
// a service exports, and shows that no metric is missing in them.
func TestDashboardsShowWhatIsMeasured(t *testing.T) {
	t.Parallel()
	known := exported(t)
	shown := make(map[string]bool)
	files, err := filepath.Glob("../../examples/grafana/*.json")
	ok(t, err)
	if len(files) != 2 {
		t.Fatalf("dashboards: %q", files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		ok(t, err)
		var d dashboard
		ok(t, json.Unmarshal(text, &d))
		variables := []string{"__rate_interval"}
		for _, v := range d.Templating.List {
			variables = append(variables, v.Name)
			if m := regexp.MustCompile(`^label_values\((.*), ([a-z_]+)\)$`).FindStringSubmatch(v.Definition); m != nil && v.Name != "service" {
				checkExpr(t, known, file+" variable "+v.Name, m[1], "{{"+m[2]+"}}")
			}
		}
		for _, m := range regexp.MustCompile(`\$\{?([a-z_]+)`).FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(variables, m[1]) && m[1] != "__all" {
				t.Errorf("%s: no variable is called %s", file, m[1])
			}
		}
		checkPanels(t, &d)
		for i := range d.Panels {
			for _, target := range d.Panels[i].Targets {
				for _, name := range checkExpr(t, known, d.Panels[i].Title, target.Expr, target.LegendFormat) {
					shown[strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if !shown[base] && base != "target_info" && base != "boxpair_audit_last_timestamp_seconds" {
			t.Errorf("no dashboard shows %s", name)
		}
	}
}

// checkPanels checks that panels are complete and do not overlap.
func checkPanels(t *testing.T, d *dashboard) {
	t.Helper()
	ids, places := make(map[int]bool), make(map[[2]int]string)
	for i := range d.Panels {
		p := &d.Panels[i]
		if ids[p.ID] {
			t.Errorf("%s: two panels have the number %d", d.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: %s is too wide", d.Title, p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := places[[2]int{x, y}]; other != "" {
					t.Fatalf("%s: %s is above %s", d.Title, p.Title, other)
				}
				places[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		f := &p.FieldConfig.Defaults
		if p.Title == "" || p.Description == "" || f.Unit == "" || len(f.Thresholds.Steps) == 0 || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s: %s lacks a description, a unit, a threshold, a query or the data source", d.Title, p.Title)
		}
	}
}

// TestAlertsAskForWhatIsMeasured looks up every metric and label of the rules among those that a
// service exports.
func TestAlertsAskForWhatIsMeasured(t *testing.T) {
	t.Parallel()
	known := exported(t)
	text, err := os.ReadFile("../../examples/prometheus/boxpair.yaml")
	ok(t, err)
	rules := regexp.MustCompile(`(?s)- alert: (\w+)\n +expr: (.*?)\n +(?:for|labels):`).FindAllStringSubmatch(string(text), -1)
	if n := strings.Count(string(text), "- alert:"); len(rules) != n || n < 11 {
		t.Fatalf("%d of %d rules were read", len(rules), n)
	}
	for _, rule := range rules {
		checkExpr(t, known, rule[1], rule[2], "")
	}
}
