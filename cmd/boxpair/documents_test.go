package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCommandsOfTheDocumentsAreUnderstood has the parser read every command that the documents show, in
// blocks and in the text. In the text, only the flags are read.
func TestCommandsOfTheDocumentsAreUnderstood(t *testing.T) {
	t.Parallel()
	const docs = "../../docs/"
	files, err := os.ReadDir(docs)
	ok(t, err)
	n := 0
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".md") {
			continue
		}
		text, err := os.ReadFile(docs + file.Name())
		ok(t, err)
		joined := strings.ReplaceAll(string(text), "\\\n", " ")
		for _, m := range regexp.MustCompile("(?m)(?:^(?:    |\\$ )boxpair ([a-z].*)$)|`boxpair\\s([a-z][^`]*)`").FindAllStringSubmatch(joined, -1) {
			n++
			expectCommand(t, file.Name()+": boxpair "+m[1]+m[2], strings.TrimSpace(m[1]+m[2]))
		}
	}
	if n < 100 {
		t.Errorf("the documents have %d commands", n)
	}
}

// expectCommand checks that the parser knows a command and its flags.
func expectCommand(t *testing.T, where, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, " | ")
	args := words(line)
	if err := singleDash(args); err != nil {
		t.Errorf("%s: %v", where, err)
	}
	c, rest, err := newTree(&process{getenv: func(string) string { return "" }, environ: func() []string { return nil }}).root.Find(args)
	if args[0] == "help" { // cobra adds it later
		return
	}
	if err != nil || c.Name() == "boxpair" {
		t.Errorf("%s: there is no such command: %v", where, err)
		return
	}
	for i, arg := range rest {
		name, _, _ := strings.Cut(arg, "=")
		switch {
		case !strings.HasPrefix(arg, "-") || strings.Contains(arg, "…"):
		case strings.HasPrefix(arg, "--"):
			if name != "--help" && c.Flags().Lookup(strings.TrimPrefix(name, "--")) == nil {
				t.Errorf("%s: unknown flag %s", where, name)
			}
		case i > 0 && slices.Contains([]string{"--since", "--until"}, rest[i-1]): // a value
		case c.Flags().ShorthandLookup(name[1:2]) == nil:
			t.Errorf("%s: unknown flag %s", where, name)
		}
	}
}

// words splits a command line as a shell does.
func words(line string) (list []string) {
	for _, m := range regexp.MustCompile(`(?:[^\s'"]|'[^']*'|"[^"]*")+`).FindAllString(line, -1) {
		list = append(list, strings.NewReplacer("'", "", `"`, "").Replace(m))
	}
	return list
}
