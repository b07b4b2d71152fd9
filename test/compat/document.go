package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
)

const (
	documentPath = "docs/compatibility.md"
	begin        = "<!-- begin: made by make compat-doc -->\n"
	end          = "<!-- end -->\n"
)

// row is the result of a release.
type row struct {
	release  release
	versions versions
	failed   [][]string // for each suite the tests that failed
	moves    []move
}

// move is the result of moving data from an older server to the release's own.
type move struct {
	title  string // begins with the server's name
	failed []string
}

// outcome is a cell of a table.
func outcome(failed []string) string {
	if len(failed) == 0 {
		return "passes"
	}
	return "**fails**: " + strings.Join(failed, ", ")
}

func (r row) passed() bool {
	for _, names := range r.failed {
		if len(names) > 0 {
			return false
		}
	}
	for _, m := range r.moves {
		if len(m.failed) > 0 {
			return false
		}
	}
	return true
}

// markdown returns the row's line in the table. It begins with the release's title.
func (r row) markdown() string {
	cells := []string{r.release.title, r.versions.postgres, r.versions.rabbitmq, r.versions.sql}
	for _, names := range r.failed {
		cells = append(cells, outcome(names))
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// table returns the table of the document. A release that did not run keeps its old line.
func table(rows []row, old string) string {
	heads := []string{"release", "PostgreSQL", "RabbitMQ", "MariaDB or MySQL"}
	for _, s := range suites {
		heads = append(heads, s.title)
	}
	var b strings.Builder
	b.WriteString("| " + strings.Join(heads, " | ") + " |\n" + strings.Repeat("|---", len(heads)) + "|\n")
	for _, r := range releases {
		line := ""
		for was := range strings.Lines(old) {
			if strings.HasPrefix(was, "| "+r.title+" |") {
				line = was
			}
		}
		for _, row := range rows {
			if row.release.name == r.name {
				line = row.markdown()
			}
		}
		b.WriteString(line)
	}
	b.WriteString("\n| moved | |\n|---|---|\n" + moved(rows, old))
	return b.String()
}

// moved returns the lines of moves of rows, or the old lines if no row has moves.
func moved(rows []row, old string) string {
	var now, was strings.Builder
	for _, r := range rows {
		for _, m := range r.moves {
			now.WriteString("| " + m.title + " | " + outcome(m.failed) + " |\n")
		}
	}
	for line := range strings.Lines(old) {
		if strings.HasPrefix(line, "| PostgreSQL ") || strings.HasPrefix(line, "| RabbitMQ ") {
			was.WriteString(line)
		}
	}
	return cmp.Or(now.String(), was.String())
}

// write writes the table into the document.
func write(path string, rows []row) error {
	return replace(path, begin, end, func(old string) string { return table(rows, old) })
}

// replace replaces the lines of a document between two lines.
func replace(path, begin, end string, lines func(old string) string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has not the lines %q and %q", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+lines(old)+end+after), 0o644)
}
