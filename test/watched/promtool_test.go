package watched

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"gopkg.in/yaml.v3"
)

const (
	rulesFile   = "../../examples/prometheus/boxpair.yaml"
	runbookFile = "../../docs/runbook.md"
)

// promtool returns the path of promtool.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := findPromtool()
	if err != nil {
		t.Fatalf("promtool is not here: %v\nInstall it (Debian: apt-get install --no-install-recommends prometheus), or put it into the PATH.", err)
	}
	return path
}

var findPromtool = sync.OnceValues(func() (string, error) {
	if path, err := exec.LookPath("promtool"); err == nil {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	unpacked := filepath.Join(cache, "boxpair-test-prometheus")
	path := filepath.Join(unpacked, "usr", "bin", "promtool")
	if exec.Command(path, "--version").Run() == nil {
		return path, nil
	}
	if err := unpackPrometheus(unpacked); err != nil {
		return "", err
	}
	return path, nil
})

// unpackPrometheus downloads Debian's package and unpacks it, without installing it.
func unpackPrometheus(to string) error {
	dir, err := os.MkdirTemp("", "prometheus")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, args := range [][]string{
		{"sh", "-c", "apt-get download prometheus || { apt-get update && apt-get download prometheus; }"},
		{"sh", "-c", "dpkg-deb -x prometheus_*.deb unpacked"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", args[2], err, out)
		}
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := exec.Command("cp", "-rT", filepath.Join(dir, "unpacked"), to).CombinedOutput() // a rename may not cross devices
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// runPromtool runs promtool and fails the test if it fails.
func runPromtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), promtool(t), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// rules is a file of rules.
type rules struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

func readYAML(t *testing.T, file string, to any) {
	t.Helper()
	text, err := os.ReadFile(file)
	ok(t, err)
	ok(t, yaml.Unmarshal(text, to))
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAlertRulesAreValid(t *testing.T) {
	t.Parallel()
	runPromtool(t, "check", "rules", rulesFile)
}

// TestEachAlertFiresAndIsSilent runs the unit tests of the rules, and shows that each rule has a case
// in which it fires and one in which it is silent to the end.
func TestEachAlertFiresAndIsSilent(t *testing.T) {
	t.Parallel()
	files := []string{"../../examples/prometheus/boxpair_test.yaml", "../../examples/prometheus/boxpair_days_test.yaml"}
	runPromtool(t, append([]string{"test", "rules"}, files...)...)
	fires, silent := make(map[string]bool), make(map[string]bool)
	for _, file := range files {
		var unit struct {
			Tests []struct {
				Cases []struct {
					Alert  string `yaml:"alertname"`
					Alerts []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			} `yaml:"tests"`
		}
		readYAML(t, file, &unit)
		for _, test := range unit.Tests {
			never := make(map[string]bool)
			for _, c := range test.Cases {
				fires[c.Alert] = fires[c.Alert] || len(c.Alerts) > 0
				before, known := never[c.Alert]
				never[c.Alert] = len(c.Alerts) == 0 && (before || !known)
			}
			for alert, is := range never {
				silent[alert] = silent[alert] || is
			}
		}
	}
	var all rules
	readYAML(t, rulesFile, &all)
	for _, r := range all.Groups[0].Rules {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: in some case it fires: %t; in some case it is silent: %t", r.Alert, fires[r.Alert], silent[r.Alert])
		}
	}
}

// TestRunbookHasEachAlert in the order of the rules, under the heading that the alert's runbook_url
// leads to.
func TestRunbookHasEachAlert(t *testing.T) {
	t.Parallel()
	var all rules
	readYAML(t, rulesFile, &all)
	var alerts []string
	for _, r := range all.Groups[0].Rules {
		alerts = append(alerts, r.Alert)
		if want := "https://github.com/boxpair/boxpair/blob/main/docs/runbook.md#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s leads to %s, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%s lacks a summary, a description or a severity", r.Alert)
		}
	}
	text, err := os.ReadFile(runbookFile)
	ok(t, err)
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(text), -1) {
		headings = append(headings, m[1])
	}
	if strings.Join(headings, " ") != strings.Join(alerts, " ") {
		t.Errorf("the runbook has\n%s\nthe rules have\n%s", headings, alerts)
	}
}

// TestQueriesOfDashboardsAreValid has promtool parse them, as rules.
func TestQueriesOfDashboardsAreValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/grafana/*.json")
	ok(t, err)
	var made rules
	made.Groups = make([]struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	}, 1)
	made.Groups[0].Name = "dashboards"
	for _, file := range files {
		text, err := os.ReadFile(file)
		ok(t, err)
		var d struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		ok(t, json.Unmarshal(text, &d))
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				expr := strings.NewReplacer("$__rate_interval", "5m", "$service", "a", "$outbox", "b", "$relay", "c", "$topic", "d", "$consumer", "e").Replace(target.Expr)
				made.Groups[0].Rules = append(made.Groups[0].Rules, rule{Alert: fmt.Sprintf("%s %d", panel.Title, len(made.Groups[0].Rules)), Expr: expr})
			}
		}
	}
	if n := len(made.Groups[0].Rules); n < 50 {
		t.Fatalf("only %d queries were read", n)
	}
	text, err := yaml.Marshal(made)
	ok(t, err)
	file := filepath.Join(t.TempDir(), "dashboards.yaml")
	ok(t, os.WriteFile(file, text, 0o600))
	runPromtool(t, "check", "rules", file)
}
