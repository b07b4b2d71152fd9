package core

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzStoredError: whatever a broker says can be stored.
func FuzzStoredError(f *testing.F) {
	f.Add("refused", 1)
	f.Add("\xff\x00é", 400)
	f.Add(strings.Repeat("a", maxStoredError-1), 2)
	f.Fuzz(func(t *testing.T, text string, times int) {
		text = strings.Repeat(text, min(max(times, 0), 2000))
		stored := storedError(errors.New(text))
		if !utf8.ValidString(stored) || len(stored) > maxStoredError || strings.Contains(stored, "\x00") {
			t.Errorf("%q is stored as %q", text, stored)
		}
		if utf8.ValidString(text) && !strings.Contains(text, "\x00") && !strings.HasPrefix(text, stored) {
			t.Errorf("%q is stored as %q, which is no beginning of it", text, stored)
		}
		if len(text)*3 <= maxStoredError && utf8.RuneCountInString(stored) != utf8.RuneCountInString(strings.ToValidUTF8(text, "\uFFFD")) {
			t.Errorf("%q is stored as %q, which is shorter", text, stored)
		}
	})
}
