package main

import (
	"os"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/internal/testenv"
)

func TestServiceIsMigratedOnItsQueue(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), testenv.Postgres(t), testenv.AMQPURL(t), testenv.Name(t)); err != nil {
		t.Fatal(err)
	}
}

// TestDocumentShowsWhatChanges takes the two services out of the difference in docs/migrating.md, and
// counts the lines of the service that change.
func TestDocumentShowsWhatChanges(t *testing.T) {
	t.Parallel()
	const most = 20
	_, diff, _ := strings.Cut(read(t, "../../docs/migrating.md"), "```diff\n")
	diff, _, _ = strings.Cut(diff, "```\n")
	var before, after strings.Builder
	changed := 0
	for line := range strings.Lines(diff) {
		text := line[1:]
		if line == "\n" {
			line, text = " \n", line
		}
		switch line[0] {
		case '-':
			before.WriteString(text)
			changed++
		case '+':
			after.WriteString(text)
		default:
			before.WriteString(text)
			after.WriteString(text)
		}
	}
	if before.String() != read(t, "before/service.go") || after.String() != read(t, "after/service.go") {
		t.Error("the difference in docs/migrating.md is not that of before/service.go and after/service.go: make it with diff -U1000")
	}
	if changed > most {
		t.Errorf("%d lines of the service change, at most %d should", changed, most)
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
