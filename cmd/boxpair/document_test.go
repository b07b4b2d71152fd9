package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestEverySettingIsDocumented compares docs/configuration.md with the settings;
// BOXPAIR_WRITE_DOCS=1 writes it.
func TestEverySettingIsDocumented(t *testing.T) {
	t.Parallel()
	const path, begin = "../../docs/configuration.md", "<!-- settings, written by go -C cmd/boxpair test . with BOXPAIR_WRITE_DOCS=1 -->\n"
	text, err := os.ReadFile(path)
	ok(t, err)
	before, old, found := strings.Cut(string(text), begin)
	if !found {
		t.Fatalf("%s has not the line %q", path, begin)
	}
	b := documentedSettings()
	switch {
	case old == b:
	case os.Getenv("BOXPAIR_WRITE_DOCS") != "":
		ok(t, os.WriteFile(path, []byte(before+begin+b), 0o600))
	default:
		t.Errorf("%s does not say what the settings are: run this test with BOXPAIR_WRITE_DOCS=1", path)
	}
}

// documentedSettings returns tables of the settings of all commands. A table shows a variable only
// if its name is not just the flag in capitals. A setting of several commands is shown once, in a
// table for these commands; the tables of most commands come first.
func documentedSettings() string {
	of := make(map[string][]string) // the commands that have a row
	var rows []string
	for i := range commands {
		s := documented(&commands[i])
		for _, setting := range s.list {
			flag := strings.TrimSpace("--" + setting.flag + " " + setting.value)
			if setting.env != "BOXPAIR_"+strings.ToUpper(strings.ReplaceAll(setting.flag, "-", "_")) {
				flag += "`, `" + setting.env
			}
			row := fmt.Sprintf("| `%s` | %s |\n", flag, strings.ReplaceAll(setting.usage, "\n", " "))
			if of[row] == nil {
				rows = append(rows, row)
			}
			of[row] = append(of[row], commands[i].name)
		}
	}
	tables := make(map[string]string)
	var titles []string
	for _, row := range rows {
		title := strings.Join(of[row], ", ")
		if tables[title] == "" {
			titles = append(titles, title)
		}
		tables[title] += row
	}
	slices.SortStableFunc(titles, func(x, y string) int { return strings.Count(y, ",") - strings.Count(x, ",") })
	var b strings.Builder
	for _, title := range titles {
		fmt.Fprintf(&b, "\n### %s\n\n| flag | |\n|---|---|\n%s", heading(strings.Split(title, ", ")), tables[title])
	}
	return b.String()
}

// heading names the commands of a table: most commands by the ones left out, and several commands
// of a family, such as "effects list" and "effects show", together.
func heading(names []string) string {
	var others []string
	for i := range commands {
		if !slices.Contains(names, commands[i].name) {
			others = append(others, commands[i].name)
		}
	}
	switch {
	case len(others) == 0:
		return "All commands"
	case len(others) < 4:
		return "All commands but " + strings.Join(others, ", ")
	}
	text, family := "boxpair", ""
	for i, name := range names {
		first, verb, _ := strings.Cut(name, " ")
		switch {
		case i > 0 && first == family:
			text += ", " + verb
		case i > 0:
			text += ", " + name
		default:
			text += " " + name
		}
		family = first
	}
	return text
}
