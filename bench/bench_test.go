package main

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestEveryLimitAndEveryTargetNamesAVariant(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios() {
		for _, v := range s.variants {
			if _, ok := s.find(v.limit); v.limit != "" && !ok {
				t.Errorf("%s %s: there is no limit %s", s.name, v.name, v.limit)
			}
			if v.measure == nil || v.about == "" || v.full == 0 && v.quick == 0 {
				t.Errorf("%s %s is not complete", s.name, v.name)
			}
		}
	}
	for _, target := range targets() {
		scenarioName, variantName := outcome{of: target.of}.split()
		for _, name := range []string{variantName, target.against} {
			if _, v, err := find(scenarioName, name); name != "" && err != nil {
				t.Errorf("%s: %v", target.name, err)
			} else if name != "" && target.when != "full" && v.quick == 0 {
				t.Errorf("%s: %s is not part of a quick run", target.name, name)
			}
		}
	}
}

func TestEveryPointOfAChartNamesAVariant(t *testing.T) {
	t.Parallel()
	for _, c := range charts() {
		for _, line := range c.lines {
			for _, p := range line.points {
				scenarioName, variantName := outcome{of: p.of}.split()
				if _, v, err := find(scenarioName, variantName); err != nil || v.full == 0 {
					t.Errorf("%s, %s: %s is not measured: %v", c.file, line.name, p.of, err)
				}
			}
		}
	}
}

func TestUnknownVariantsAreRefusedWithAList(t *testing.T) {
	t.Parallel()
	if _, _, err := find("relays", "classic"); err == nil || !strings.Contains(err.Error(), "relay, ") {
		t.Errorf("scenario: %v", err)
	}
	if _, _, err := find("relay", "class"); err == nil || !strings.Contains(err.Error(), "limit-classic, limit-classic-headers, ") {
		t.Errorf("variant: %v", err)
	}
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	t.Parallel()
	of := func(rates ...float64) (list []Result) {
		for i, rate := range rates {
			if rate > 0 {
				list = append(list, Result{Round: i + 1, Rate: rate})
			}
		}
		return list
	}
	results := map[string][]Result{"s/v": of(10, 0, 90), "s/limit": of(10, 1, 100)}
	o := atLeast("name", "s/v", "limit", 0.95).judge(results)
	if o.Value == nil || *o.Value != 0.95 || !o.Met {
		t.Fatalf("got %v, want the median of 1 and 0.9", o.Value)
	}
	if o := atLeast("name", "s/v", "limit", 0.96).judge(results); o.Met {
		t.Fatal("met at 0.95")
	}
	if o := atMost("name", "s/v", 49, rate).judge(results); o.Met || *o.Value != 50 {
		t.Fatalf("got %v %v, want the median of 10 and 90 above 49", *o.Value, o.Met)
	}
	if o := atLeast("name", "s/other", "limit", 1).judge(results); o.Met || o.Value != nil {
		t.Fatal("met though it was not measured")
	}
}

func TestOutcomesAreOneObjectInTheOrderOfTheTargets(t *testing.T) {
	t.Parallel()
	value, bound := 0.5, 0.9
	text, err := json.Marshal(outcomes{{Name: "z", Value: &value, Target: &bound}, {Name: "a", Met: true}})
	want := `{"z":{"value":0.5,"target":0.9,"met":false},"a":{"value":null,"target":null,"met":true}}`
	if err != nil || string(text) != want {
		t.Fatalf("got %s %v, want %s", text, err, want)
	}
	if text, err := json.Marshal(outcomes{}); err != nil || string(text) != "{}" {
		t.Fatalf("none: %s %v", text, err)
	}
}

func TestScaledRunsNameWhatTheyHaveRetained(t *testing.T) {
	t.Parallel()
	for scale, want := range map[string]string{"1": "10 M", "0.3": "3 M", "3": "10 M"} {
		r := &report{results: map[string][]Result{}}
		if err := r.plan.parse([]string{"-scale", scale}); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, o := range r.outcomes() {
			found = found || o.Name == "relay, "+want+" retained events: of itself without"
		}
		if !found {
			t.Errorf("scale %s: no target tells of %s retained events", scale, want)
		}
	}
	if n := (&stage{scale: 0.3, quick: true}).retainedSize(200_000); n != 200_000 {
		t.Errorf("-quick has %d retained events, and not those that its target names", n)
	}
}

func TestEffortTellsWhatTimeWasSpentOn(t *testing.T) {
	t.Parallel()
	r := &report{took: 90 * time.Second, results: map[string][]Result{"a/b": {
		{Seconds: 10, Took: 30, Steps: map[string]float64{"events": 4, "tidy": 0.1}},
		{Seconds: 12, Took: 20, Steps: map[string]float64{"retained": 9}},
	}}}
	if got, want := r.effort(), "1m30s: 22 s measured, of 50 s in processes that measure; retained 9 s, events 4 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMediansAndNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   string
	}{
		{[]float64{3, 1, 2}, "2"}, {[]float64{1, 2}, "1.5"}, {[]float64{17359.4}, "17,359"},
		{[]float64{1234567}, "1,234,567"}, {[]float64{0.94949}, "0.949"}, {[]float64{0.012345}, "0.0123"}, {[]float64{0}, "0"},
		{[]float64{0.3}, "0.3"}, {[]float64{99.96}, "100"},
	} {
		if got := number(median(c.values)); got != c.want {
			t.Errorf("%v: got %s, want %s", c.values, got, c.want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("there is a median of nothing")
	}
}

func TestFiguresReplaceWhatStandsBetweenTheLines(t *testing.T) {
	t.Parallel()
	document := "head\n" + figuresBegin + "\nold\n" + figuresEnd + "\ntail\n"
	for range 2 { // and again in what was written
		var err error
		if document, err = replaceFigures(document, "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	if want := "head\n" + figuresBegin + "\nnew\n" + figuresEnd + "\ntail\n"; document != want {
		t.Fatalf("got %q, want %q", document, want)
	}
	for _, document := range []string{"", figuresBegin + "\n", figuresEnd} {
		if _, err := replaceFigures(document, "new"); err == nil {
			t.Errorf("%q was taken", document)
		}
	}
}

func TestDocumentGetsTargetsAndPlotsAndResultsTheTables(t *testing.T) {
	t.Parallel()
	path, results := filepath.Join(t.TempDir(), "performance.md"), filepath.Join(t.TempDir(), "results")
	if err := os.WriteFile(path, []byte("# Title\n"+figuresBegin+"\n"+figuresEnd+"\nend"), 0o600); err != nil {
		t.Fatal(err)
	}
	var p plan
	if err := p.parse([]string{"-rounds", "1", "-results", results}); err != nil {
		t.Fatal(err)
	}
	r := &report{plan: p, machine: []string{"a machine"}, results: map[string][]Result{
		"relay/limit-classic": {{Round: 1, Rate: 10_000}},
		"relay/classic":       {{Round: 1, Rate: 9_000, Extra: map[string]float64{"depth": 2}}},
		"relay/backlog-10k":   {{Round: 1, Rate: 8_000}},
	}}
	if err := r.writeDocument(path, r.outcomes()); err != nil {
		t.Fatal(err)
	}
	text := read(t, path)
	expect(t, text, "# Title\n", "- a machine\n", "| relay, classic queue: of raw amqp091 | ≥ 0.95 | 0.9 | missed |",
		"(performance/backlog.svg)", "end")
	if strings.Contains(text, "producers.svg") {
		t.Error("a plot without points")
	}
	expect(t, read(t, filepath.Join(results, variantsFile)), "- a machine\n", "| 9,000 | 9,000–9,000 | 0.9 of `limit-classic` |", "depth 2")
	if _, err := os.Stat(filepath.Join(results, profilesFile)); err == nil {
		t.Error("profiles of a run that made none")
	}
	svg, err := os.ReadFile(filepath.Join(filepath.Dir(path), "performance", "backlog.svg"))
	if err != nil || !strings.Contains(string(svg), "<svg") {
		t.Fatalf("no plot: %v", err)
	}
}

func TestProfilesAreWrittenBesideTheTables(t *testing.T) {
	t.Parallel()
	r := &report{plan: plan{results: t.TempDir(), scale: 1}, machine: []string{"a machine"}, profiled: []string{"relay-classic"}}
	if err := r.writeResults(); err != nil {
		t.Fatal(err)
	}
	expect(t, read(t, filepath.Join(r.plan.results, profilesFile)), "# CPU profiles\n", "- a machine\n", "## relay-classic\n\n```\nnot readable: ")
}

// TestResultsAreAsTheSuiteWritesThem looks at the heads and the tables of what is committed.
func TestResultsAreAsTheSuiteWritesThem(t *testing.T) {
	t.Parallel()
	variants := read(t, filepath.Join("results", variantsFile))
	expect(t, variants, legend, "\n### chain\n")
	if !strings.HasPrefix(variants, variantsHead+"- ") {
		t.Errorf("%s does not begin with\n%s", variantsFile, variantsHead)
	}
	if profiles := read(t, filepath.Join("results", profilesFile)); !strings.HasPrefix(profiles, profilesHead+"- ") {
		t.Errorf("%s does not begin with\n%s", profilesFile, profilesHead)
	}
	document := read(t, "../docs/performance.md")
	for _, name := range []string{variantsFile, profilesFile} {
		expect(t, document, "(../bench/results/"+name+")")
	}
}

func TestItemsAreWrapped(t *testing.T) {
	t.Parallel()
	word := strings.Repeat("µ", 60)
	if got, want := item(word+" b "+word), "- "+word+" b\n  "+word+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func expect(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
}

func TestDocumentWithoutAPlaceForFiguresIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte("# Title\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := command(t.Context(), []string{"suite", "-doc", path}); err == nil || !strings.Contains(err.Error(), figuresBegin) {
		t.Fatalf("got %v", err)
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "runs", "run", "run relay", "run relay classic -n -1", "suite -rounds 0", "suite -only (", "suite relay", "check relay"} {
		if err := command(t.Context(), strings.Fields(args)); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
}

func TestBudgetsAreComparedWithWhatIsMeasured(t *testing.T) {
	t.Parallel()
	wal := 100.0
	r := Result{Statements: 4, WAL: &wal, Allocs: 50}
	for _, c := range []struct {
		budget budget
		want   string // part of the error, "" for none
	}{
		{budget{Statements: 4, WAL: 100, Allocs: 50}, ""},
		{budget{Statements: 3.9, WAL: 100, Allocs: 50}, "4 statements per message, more than the budget of 3.9"},
		{budget{Statements: 4, WAL: 99}, "100 bytes of WAL"},
		{budget{Allocs: 49.5}, "50 allocations"},
		{budget{}, ""},
	} {
		line, err := c.budget.compare("relay/classic", r)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.budget, err, c.want)
		}
		if !strings.HasPrefix(line, "relay/classic") {
			t.Errorf("line %q", line)
		}
	}
	if _, err := (budget{WAL: 1}).compare("x", Result{}); err == nil {
		t.Error("a log of unknown length is within its budget")
	}
}

func TestBudgetsMustNameVariants(t *testing.T) {
	t.Parallel()
	if _, err := readBudgets("budget.json"); err != nil {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "budget.json")
	for _, text := range []string{`{"relay/none": {"messages": 1}}`, `{"relay/classic": {}}`, `[]`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := command(t.Context(), []string{"check", "-budget", path}); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
}

// discard is a connection that takes everything, and answers.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) Read(b []byte) (int, error)  { return min(1, len(b)), nil }

func TestStatementsAndRoundTripsAreCountedHoweverTheyAreCutUp(t *testing.T) {
	t.Parallel()
	message := func(kind byte, size int) []byte {
		b := []byte{kind}
		if kind == 0 {
			b = nil
		}
		return append(binary.BigEndian.AppendUint32(b, uint32(size+4)), make([]byte, size)...)
	}
	// A start-up message; a query; a pipeline of two statements with an E in their content.
	first := append(message(0, 30), message('Q', 20)...)
	var second []byte
	for range 2 {
		parse := message('P', 40)
		copy(parse[20:], "EEEEQQQQ")
		second = append(append(append(second, parse...), message('B', 9)...), message('E', 5)...)
	}
	second = append(second, message('S', 0)...)
	for _, piece := range []int{1, 2, 3, 7, 1000} {
		var w wire
		conn, _ := w.count(t.Context(), nil, discard{})
		for _, text := range [][]byte{first, second} {
			for len(text) > 0 {
				n := min(piece, len(text))
				_, _ = conn.Write(text[:n])
				text = text[n:]
			}
			_, _ = conn.Read(make([]byte, 10))
			_, _ = conn.Read(make([]byte, 10))
		}
		if s, r := w.statements.Load(), w.roundTrips.Load(); s != 3 || r != 2 {
			t.Errorf("in pieces of %d: %d statements and %d round trips, want 3 and 2", piece, s, r)
		}
	}
}
