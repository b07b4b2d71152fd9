package style

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitectureNamesFunctionsThatExist looks for each function that docs/architecture.md names
// in the file that it names.
func TestArchitectureNamesFunctionsThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	places := regexp.MustCompile("((?:`[A-Za-z.]+`(?: and )?)+) \\(([a-z_/]+\\.go)\\)").FindAllStringSubmatch(string(text), -1)
	if len(places) < 40 {
		t.Fatalf("the document names %d places", len(places))
	}
	for _, place := range places {
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(place[2])))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range regexp.MustCompile("[A-Za-z.]+`").FindAllString(place[1], -1) {
			name = strings.TrimSuffix(name, "`")
			if !regexp.MustCompile(declaration(name)).Match(source) {
				t.Errorf("%s has no function %s", place[2], name)
			}
		}
	}
}

// declaration is a pattern of the line that declares a function, a constant of a group, or a method
// as Type.Method.
func declaration(name string) string {
	receiver, method, found := strings.Cut(name, ".")
	if !found {
		return `(?m)^(func ` + name + `[\[(]|\t` + name + ` += )`
	}
	return `(?m)^func \(\w+ \*?` + receiver + `(\[\w+\])?\) ` + method + `\(`
}
