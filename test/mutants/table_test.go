package mutants

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

func TestEveryMutantFitsTheSource(t *testing.T) {
	t.Parallel()
	for _, m := range All() {
		if _, err := m.Mutate(root); err != nil {
			t.Error(err)
		}
		if m.Old == m.New {
			t.Errorf("mutant %s changes nothing", m.Name)
		}
	}
}

func TestReplacementThatDoesNotFitIsAnError(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]string{"not there": "no such" + " text", "more than once": "package"} {
		m := Mutant{Name: name, File: "test/mutants/table_test.go", Old: old}
		if _, err := m.Mutate(root); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("text that is %s: %v", name, err)
		}
	}
}

func TestEveryMutantIsDescribed(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	broken := make(map[string]bool)
	for _, m := range All() {
		if !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(m.Name) || names[m.Name] {
			t.Errorf("mutant %q has no name of its own", m.Name)
		}
		names[m.Name] = true
		if !regexp.MustCompile(`^G[1-8]$`).MatchString(m.Guarantee) {
			t.Errorf("mutant %s breaks the guarantee %q", m.Name, m.Guarantee)
		}
		broken[m.Guarantee] = true
		if !regexp.MustCompile(`^[A-Z].*\.$`).MatchString(m.Broken) {
			t.Errorf("mutant %s: %q is not a sentence", m.Name, m.Broken)
		}
	}
	if len(broken) != 8 {
		t.Errorf("there are mutants of %d guarantees", len(broken))
	}
}

// TestNamedTestsExist looks up functions in their packages, and the names of facts there and in the
// contracts of the stores.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	var tests []Test
	for _, m := range All() {
		tests = append(tests, m.Test)
	}
	for _, h := range Hazards() {
		tests = append(tests, h.Tests...)
	}
	contract := source(t, "store/storetest", "*.go")
	packages := make(map[string]string)
	for _, test := range tests {
		if packages[test.Package] == "" {
			packages[test.Package] = source(t, test.Package, "*_test.go")
		}
		if !strings.Contains(packages[test.Package], "\nfunc "+test.Function()+"(t *testing.T)") {
			t.Errorf("package %s has no %s", test.Package, test.Function())
		}
		parts := strings.Split(test.Name, "/")
		for _, part := range parts[1:] {
			if !strings.Contains(contract, `"`+part+`"`) && !strings.Contains(packages[test.Package], `"`+part+`"`) {
				t.Errorf("%s: there is no fact %q", test.Function(), part)
			}
		}
	}
}

func TestListNamesEveryMutantAndEveryHazardWithItsTests(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := List(&b, All(), true); err != nil {
		t.Fatal(err)
	}
	for _, m := range All() {
		if want := m.Name + " (" + m.Guarantee + "): " + m.Broken + "\n    " + m.Test.Package + " " + m.Test.Name + "\n"; !strings.Contains(b.String(), want) {
			t.Errorf("not listed: %s", want)
		}
	}
	for _, h := range Hazards() {
		if want := h.Text + "\n    " + h.Tests[0].Package + " "; !strings.Contains(b.String(), want) {
			t.Errorf("not listed: %s", want)
		}
	}
	b.Reset()
	if err := List(&b, All()[:1], false); err != nil || strings.Count(b.String(), "\n") != 2 {
		t.Errorf("one mutant is listed as %q: %v", &b, err)
	}
}

func source(t *testing.T, dir, glob string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), glob))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files: %v", dir, len(files), err)
	}
	var b strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}
