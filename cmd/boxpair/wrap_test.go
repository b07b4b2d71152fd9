package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestLinesAreWrappedBetweenWords(t *testing.T) {
	t.Parallel()
	words := strings.Repeat("ab ", 9) + "4b9d2a51-7c11-5d6e-9d7e-2f4c8f3b1a20  end"
	for _, c := range []struct {
		width int
		wide  bool
		want  string
	}{
		{24 + 4, false, "head  ab ab ab ab ab ab ab\n    ab ab\n    4b9d2a51-7c11-5d6e-9d7e-2f4c8f3b1a20\n    end\n"},
		{10, false, "head  ab ab ab ab ab ab ab\n    ab ab\n    4b9d2a51-7c11-5d6e-9d7e-2f4c8f3b1a20\n    end\n"},
		{0, false, "head  " + words + "\n"},
		{40, true, "head  " + words + "\n"},
	} {
		var out bytes.Buffer
		(&display{wide: c.wide}).wrap(&process{width: c.width}, &out, "head  ", "    ", words)
		if out.String() != c.want {
			t.Errorf("%+v: %q", c, out.String())
		}
	}
	var out bytes.Buffer
	(&display{}).wrap(&process{width: 28}, &out, "  ", "    ", "\x1b[31mdead\x1b[0m aaaaaaaaaa bbbbbbbb cc")
	if want := "  \x1b[31mdead\x1b[0m aaaaaaaaaa bbbbbbbb\n    cc\n"; out.String() != want {
		t.Errorf("colors count as columns: %q", out.String())
	}
}

// Commands to copy are whole, and alone on their lines.
func TestCommandsAreNotWrapped(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("the cause has to be mended ", 4)
	command := "boxpair dead redrive 4b9d2a51-7c11-5d6e-9d7e-2f4c8f3b1a20 --state retrying --outbox postgres://orders/shop -m 'the cause is mended'"
	statement := "ALTER ROLE shop_reports IN DATABASE shop_of_the_northern_region RESET default_transaction_read_only"
	for _, c := range []struct {
		remedy bool
		text   string
		want   string
	}{
		{false, "boxpair doctor   # short", "    boxpair doctor   # short\n"},
		{false, command + "   # at once, not in 3m", "    # at once, not in 3m\n    " + command + "\n"},
		{false, "boxpair resume --topic '#   # x'", "    boxpair resume --topic '#   # x'\n"},
		{false, command, "    " + command + "\n"},
		{false, "# " + strings.TrimSpace(long), "    # the cause has to be mended the cause has to be mended the cause has to be\n    # mended the cause has to be mended\n"},
		{true, "free disk space, or rabbitmqctl set_disk_free_limit 1GB", "    free disk space, or rabbitmqctl set_disk_free_limit 1GB\n"},
		{true, statement, "    " + statement + "\n"},
		{true, long + ": " + statement, "    the cause has to be mended the cause has to be mended the cause has to be\n    mended the cause has to be mended :\n    " + statement + "\n"},
		{true, strings.TrimSpace(long), "    the cause has to be mended the cause has to be mended the cause has to be\n    mended the cause has to be mended\n"},
	} {
		var out bytes.Buffer
		if c.remedy {
			(&display{}).remedy(&process{}, &out, "    ", c.text)
		} else {
			(&display{}).commented(&process{}, &out, "    ", c.text)
		}
		if out.String() != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", c.text, out.String(), c.want)
		}
	}
}
