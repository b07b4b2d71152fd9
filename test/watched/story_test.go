package watched

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/boxpair/boxpair/test/shop"
)

// TestQueueThatIsGoneIsHealedByOneCommand types the commands of docs/at-night.md, and has Prometheus'
// rules judge what the relay exports before, while the queue is gone, and after.
func TestQueueThatIsGoneIsHealedByOneCommand(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/at-night.md")
	ok(t, err)
	blocks := regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 5 {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	s := shop.New(t)
	relay, address := s.StartRelay()
	before := scrapeUntil(t, address, 0)
	s.LoseQueue()
	gone := scrapeUntil(t, address, 1)
	for i, block := range blocks {
		if i == len(blocks)-1 { // stock has started again
			defer s.StartStock()()
		}
		for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			shows(t, s, command, strings.TrimSuffix(want, "\n")+"\n")
		}
	}
	judgeNight(t, before, gone, scrapeUntil(t, address, 0))
	ok(t, relay.Stop())
}

// progress is a line that verify prints on a busy machine only.
var progress = regexp.MustCompile(`(?m)^boxpair verify: +\d+ %, .*\n`)

// shows waits until a command prints what the page says.
func shows(t *testing.T, s *shop.Shop, command, want string) {
	t.Helper()
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", "[^\n]*")
	pattern = strings.ReplaceAll("\n"+pattern, "\n[^\n]*\n", "\n(?:[^\n]*\n)*") // a line of its own is any number of lines
	page := regexp.MustCompile(`\A` + pattern + `\z`)
	shop.Until(t, func() error {
		if got := progress.ReplaceAllString(s.Type(command), ""); !page.MatchString("\n" + got) {
			return fmt.Errorf("$ %s\n%s\nwant:\n%s", command, got, want)
		}
		return nil
	})
}

// scrapeUntil scrapes a relay until it exports as many routes that do not work, and returns its series
// with their values.
func scrapeUntil(t *testing.T, address string, stalled int) (series map[string]string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^([a-z_]+\{.*\}) (\S+)$`)
	shop.Until(t, func() error {
		text := get(t, "http://"+address+"/metrics")
		series = make(map[string]string)
		for _, m := range line.FindAllStringSubmatch(text, -1) {
			series[m[1]] = m[2]
		}
		for name, value := range series {
			if strings.HasPrefix(name, "boxpair_relay_routes_stalled{") && value == strconv.Itoa(stalled) {
				return nil
			}
		}
		return errors.New(text)
	})
	return series
}

// judgeNight has promtool see the scrapes of a night, one in 30 s: 2 minutes before, 10 while the queue
// is gone, 10 after. The alert fires as the page says: after 5 minutes, until the end.
func judgeNight(t *testing.T, before, gone, after map[string]string) {
	t.Helper()
	type series struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	var night []series
	for name := range gone {
		held := func(scrape map[string]string, times int) string {
			if scrape[name] == "" {
				return fmt.Sprintf("_x%d", times)
			}
			return fmt.Sprintf("%sx%d", scrape[name], times-1)
		}
		night = append(night, series{name, held(before, 4) + " " + held(gone, 20) + " " + held(after, 20)})
	}
	slices.SortFunc(night, func(a, b series) int { return strings.Compare(a.Series, b.Series) })
	type expected struct {
		Labels      map[string]string `yaml:"exp_labels"`
		Annotations map[string]string `yaml:"exp_annotations"`
	}
	type asked struct {
		At     string     `yaml:"eval_time"`
		Alert  string     `yaml:"alertname"`
		Alerts []expected `yaml:"exp_alerts"`
	}
	const alert = "BoxpairRouteDoesNotWork"
	var all rules
	readYAML(t, rulesFile, &all)
	rule := all.Groups[0].Rules[slices.IndexFunc(all.Groups[0].Rules, func(r rule) bool { return r.Alert == alert })]
	relay := relayOf(t, gone)
	fires := []expected{{map[string]string{"severity": "page", "boxpair_relay": relay}, make(map[string]string)}}
	for name, text := range rule.Annotations {
		fires[0].Annotations[name] = strings.NewReplacer("{{ $value }}", "1", "{{ $labels.boxpair_relay }}", relay).Replace(text)
	}
	path, err := filepath.Abs(rulesFile)
	ok(t, err)
	text, err := yaml.Marshal(map[string]any{
		"rule_files": []string{path}, "evaluation_interval": "30s",
		"tests": []map[string]any{{"interval": "30s", "input_series": night, "alert_rule_test": []asked{
			{"1m30s", alert, nil}, {"6m30s", alert, nil}, {"7m", alert, fires}, {"11m30s", alert, fires}, {"12m", alert, nil}, {"20m", alert, nil},
		}}},
	})
	ok(t, err)
	file := filepath.Join(t.TempDir(), "night.yaml")
	ok(t, os.WriteFile(file, text, 0o600))
	runPromtool(t, "test", "rules", file)
}

// relayOf returns the name of the relay of a scrape.
func relayOf(t *testing.T, scrape map[string]string) string {
	t.Helper()
	label := regexp.MustCompile(`^boxpair_relay_routes_stalled\{.*boxpair_relay="([^"]+)"`)
	for name := range scrape {
		if m := label.FindStringSubmatch(name); m != nil {
			return m[1]
		}
	}
	t.Fatal("the scrape names no relay")
	return ""
}
