package main

import (
	"os"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/internal/testenv"
)

func TestOrderIsShipped(t *testing.T) {
	t.Parallel()
	name := testenv.Name(t)
	if err := run(t.Context(), testenv.Postgres(t), testenv.AMQPURL(t), names{name, name + ".placed", "ship"}); err != nil {
		t.Fatal(err)
	}
}

func TestDocumentShowsThisProgram(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../docs/getting-started.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(document), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("the document shows no Go code")
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(string(program), code) {
			t.Errorf("this code of the document is not in main.go:\n%s", code)
		}
	}
}
