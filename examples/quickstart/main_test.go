package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestQuickstartDelivers(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), filepath.Join(t.TempDir(), "shop.db")); err != nil {
		t.Fatal(err)
	}
}

func TestReadmeShowsThisProgram(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(readme), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("README shows no Go code")
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(unindented(string(program)), unindented(code)) {
			t.Errorf("this code of README.md is not in main.go:\n%s", code)
		}
	}
}

// unindented returns text without what lines begin with.
func unindented(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], "\t ")
	}
	return strings.Join(lines, "\n")
}
