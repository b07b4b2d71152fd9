package text_test

import (
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/boxpair/boxpair/internal/text"
)

// FuzzClean: any error and any topic can be stored.
func FuzzClean(f *testing.F) {
	f.Add("refused", 1, 1024)
	f.Add("\xff\x00é", 400, 255)
	f.Fuzz(func(t *testing.T, s string, times, most int) {
		s, most = strings.Repeat(s, min(max(times, 0), 2000)), min(max(most, 0), 2000)
		stored := text.Clean(s, most)
		if !utf8.ValidString(stored) || len(stored) > most || strings.Contains(stored, "\x00") {
			t.Errorf("%q is stored as %q", s, stored)
		}
		if text.Clean(stored, most) != stored {
			t.Errorf("%q is changed again", stored)
		}
		if utf8.ValidString(s) && !strings.Contains(s, "\x00") && !strings.HasPrefix(s, stored) {
			t.Errorf("%q is stored as %q, which is no beginning of it", s, stored)
		}
	})
}

func TestQuotedIsOneWordOfAShell(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"order.placed", "", "a b", "it's", "$(id)`id`;\"\\\n*"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s. "+text.Quoted(word)).Output()
		if err != nil || string(out) != word+"." {
			t.Errorf("%q is read as %q, %v", word, out, err)
		}
	}
	if got := text.Quoted("order.placed"); got != "order.placed" {
		t.Errorf("a plain word is quoted: %s", got)
	}
}
