package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestQuickstartDelivers(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), filepath.Join(t.TempDir(), "shop.db")); err != nil {
		t.Fatal(err)
	}
}

// TestReadmeShowsThisProgram finds the code of README.md in these files. README.md leaves out the
// lines that return errors.
func TestReadmeShowsThisProgram(t *testing.T) {
	t.Parallel()
	program := source(t, "main.go") + source(t, "wrap.go")
	blocks := strings.Split(read(t, "../../README.md"), "```go\n")[1:]
	if len(blocks) < 3 {
		t.Fatalf("README shows %d pieces of Go code", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(program, plain(code)) {
			t.Errorf("this code of README.md is not in the program:\n%s", code)
		}
	}
}

func source(t *testing.T, path string) string {
	t.Helper()
	return plain(read(t, path))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	indent = regexp.MustCompile(`(?m)^[\t ]+`)
	// check matches the common return of an error alone.
	check = regexp.MustCompile(`(?m)^if err != nil \{\nreturn err\n\}\n`)
)

// plain returns code without indentation and without checks of errors.
func plain(code string) string { return check.ReplaceAllString(indent.ReplaceAllString(code, ""), "") }
