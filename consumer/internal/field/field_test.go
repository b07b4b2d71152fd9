package field_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/boxpair/boxpair/consumer/internal/field"
)

// FuzzClean: any error and any topic can be stored.
func FuzzClean(f *testing.F) {
	f.Add("refused", 1, 1024)
	f.Add("\xff\x00é", 400, 255)
	f.Fuzz(func(t *testing.T, text string, times, most int) {
		text, most = strings.Repeat(text, min(max(times, 0), 2000)), min(max(most, 0), 2000)
		stored := field.Clean(text, most)
		if !utf8.ValidString(stored) || len(stored) > most || strings.Contains(stored, "\x00") {
			t.Errorf("%q is stored as %q", text, stored)
		}
		if field.Clean(stored, most) != stored {
			t.Errorf("%q is changed again", stored)
		}
		if utf8.ValidString(text) && !strings.Contains(text, "\x00") && !strings.HasPrefix(text, stored) {
			t.Errorf("%q is stored as %q, which is no beginning of it", text, stored)
		}
	})
}
