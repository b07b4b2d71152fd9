package postgres

import (
	"maps"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/boxpair/boxpair/migrations"
)

// FuzzMetadata: metadata comes back as it was, whatever it holds, and is kept as JSON that
// PostgreSQL takes.
func FuzzMetadata(f *testing.F) {
	f.Add("name", "value", "", "empty name")
	f.Add("\xff", "\x00", "nul", "a\x00b")
	f.Add("a", "\u2028<>&", "\ufffd", "é")
	f.Fuzz(func(t *testing.T, name, value, other, otherValue string) {
		metadata := map[string]string{name: value, other: otherValue}
		text, err := encodeMetadata(metadata)
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.ValidString(text) || strings.ContainsAny(text, "\x00") || nulEscape.MatchString(text) {
			t.Errorf("not for jsonb: %q", text)
		}
		back, err := decodeMetadata([]byte(text))
		if err != nil || !maps.Equal(back, metadata) {
			t.Errorf("%q comes back as %q, %v", metadata, back, err)
		}
	})
}

var nulEscape = regexp.MustCompile(`(?:^|[^\\])(?:\\\\)*\\u0000`)

// FuzzDecodeMetadata: a row that was changed by hand is an error without its content, no panic.
func FuzzDecodeMetadata(f *testing.F) {
	f.Add([]byte(`{"a":"b","":[["AA==","/w=="]]}`))
	f.Add([]byte(`{"":[["AA=="]]}`))
	f.Add([]byte(`[1]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		metadata, err := decodeMetadata(text)
		if (metadata == nil) == (err == nil) {
			t.Errorf("%q and %v", metadata, err)
		}
		if err != nil && len(err.Error()) > 100 {
			t.Errorf("an error that shows the row: %v", err)
		}
	})
}

// FuzzStatements: whatever the names hold, a statement is the same outside its quoted names.
func FuzzStatements(f *testing.F) {
	for _, seed := range []string{"", `a"; DROP TABLE x; --`, `"`, "'", "$1", "{{inbox}}", "/*", "\\", "é\n"} {
		f.Add(seed, seed)
	}
	quoted := regexp.MustCompile(`"(?:[^"]|"")*"`)
	plain, err := migrations.PostgresNames("", "")
	if err != nil {
		f.Fatal(err)
	}
	want := newStatements(plain)
	f.Fuzz(func(t *testing.T, schema, prefix string) {
		names, err := migrations.PostgresNames(schema, prefix)
		if err != nil {
			return
		}
		for template, text := range newStatements(names) {
			if got := quoted.ReplaceAllString(text, "?"); got != quoted.ReplaceAllString(want[template], "?") {
				t.Fatalf("a statement is changed by %q, %q: %s", schema, prefix, got)
			}
		}
		for _, name := range []string{hashed(names, "writer"), hashed(names, "wake")} {
			if strings.Trim(name, "0123456789abcdef") != "" || len(name) > 40 {
				t.Errorf("%q is used as a name", name)
			}
		}
	})
}

// FuzzText: any error can be stored.
func FuzzText(f *testing.F) {
	f.Add("\xff\x00é")
	f.Fuzz(func(t *testing.T, s string) {
		stored := storable(s)
		if !utf8.ValidString(stored) || strings.Contains(stored, "\x00") || utf8.ValidString(s) && !strings.Contains(s, "\x00") && stored != s {
			t.Errorf("%q is stored as %q", s, stored)
		}
	})
}
