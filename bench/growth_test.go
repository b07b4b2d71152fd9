package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestGrowthIsDrawnAlongEachAxis(t *testing.T) {
	r := &report{results: map[string][]Result{}}
	for _, a := range axes() {
		for i, n := range a.points {
			name := fmt.Sprint(a.name, "-", n)
			if _, _, err := find("growth", name); err != nil {
				t.Error(err)
			}
			peak := 5e7
			r.results["growth/"+name] = []Result{{Rate: 1000 * float64(i+1), PeakRSS: &peak, Extra: map[string]float64{"p50_ms": 1, "p99_ms": 4}}}
		}
		path := filepath.Join(t.TempDir(), a.name+".svg")
		if err := r.drawGrowth(a, path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"events a second", "commit to received, ms", "memory, MB", a.title, ">" + short(a.points[1]) + "<"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s: %q is missing", a.name, part)
			}
		}
	}
}

func TestGrowthReplacesTheRowsThatWereMeasuredAgain(t *testing.T) {
	r := &report{results: map[string][]Result{"growth/keys-1": {{Rate: 1}}, "growth/keys-10": {{Rate: 2}}, "growth/topics-1": {{Rate: 3}}}}
	path := filepath.Join(t.TempDir(), "growth.md")
	again := &report{results: map[string][]Result{"growth/keys-1": {{Rate: 4}}}}
	if err := errors.Join(r.writeGrowth(path, true), again.writeGrowth(path, false)); err != nil {
		t.Fatal(err)
	}
	var rates []string
	text := read(t, path)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| `") {
			rates = append(rates, strings.TrimSpace(strings.Split(line, "|")[3]))
		}
	}
	if want := []string{"4", "2", "3"}; !slices.Equal(rates, want) || !strings.HasPrefix(text, "# Growth") {
		t.Errorf("rates are %v, want %v, in:\n%s", rates, want, text)
	}
	unknown := &report{results: map[string][]Result{"growth/dead-0": {{Rate: 5}}}}
	if err := unknown.writeGrowth(path, false); err == nil || !strings.Contains(err.Error(), "dead-0") || read(t, path) != text {
		t.Errorf("a row that the table has not: %v", err)
	}
}

func TestGrowthIsNoPartOfTheSuite(t *testing.T) {
	for _, p := range []plan{{}, {quick: true}, {apart: true}} {
		p.only = regexp.MustCompile("")
		for _, s := range scenarios() {
			if got := p.choose(s); (len(got) > 0) != (s.apart == p.apart) {
				t.Errorf("%+v chooses %d variants of %s", p, len(got), s.name)
			}
		}
	}
}
