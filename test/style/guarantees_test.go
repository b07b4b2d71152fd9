package style

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestTestsNamedInGuaranteesExist keeps the crash table true: every test that
// docs/guarantees.md names is there.
func TestTestsNamedInGuaranteesExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := allTests(t)
	named := 0
	// A name of a test is long and has no dot, which tells it from other code.
	for _, match := range regexp.MustCompile("`([A-Z][A-Za-z0-9]{14,})`").FindAllStringSubmatch(string(text), -1) {
		if name := match[1]; name != "ErrCommitUnknown" {
			named++
			if !tests[name] {
				t.Errorf("there is no Test%s", name)
			}
		}
	}
	if named < 70 {
		t.Errorf("only %d tests are named: has the format changed?", named)
	}
}

// TestTestsNamedInFullExist does the same for the documents in which names
// are whole.
func TestTestsNamedInFullExist(t *testing.T) {
	t.Parallel()
	tests := allTests(t)
	for _, path := range []string{"../../SECURITY.md", "../../docs/security.md", "../../docs/features.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		matches := regexp.MustCompile("`Test([A-Z][A-Za-z0-9]*)`").FindAllStringSubmatch(string(text), -1)
		if len(matches) == 0 {
			t.Errorf("%s names no test", path)
		}
		for _, match := range matches {
			if !tests[match[1]] {
				t.Errorf("%s: there is no Test%s", path, match[1])
			}
		}
	}
}

// allTests returns the names of all tests, without Test.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "grep", "-rhoE", "--include=*_test.go", `^func Test[A-Za-z0-9_]+`, "../..").Output()
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		tests[strings.TrimPrefix(strings.TrimSpace(line), "func Test")] = true
	}
	return tests
}
