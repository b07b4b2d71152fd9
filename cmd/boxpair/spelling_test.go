package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/store/control"
)

func TestNearestNamesAreSuggested(t *testing.T) {
	t.Parallel()
	names := []string{"order.shipped", "order.placed", "order.placed", "stock.reserved", "mail"}
	for name, want := range map[string]string{
		"ordr.placed":  "; did you mean order.placed?",
		"orders.plced": "; did you mean order.placed?",
		"ORDER.PLACED": "; did you mean order.placed?",
		"order.*":      "; did you mean order.placed or order.shipped?",
		"reserved":     "; did you mean stock.reserved?",
		"payments":     "",
		"#":            "",
		"":             "",
		"mali":         "; did you mean mail?",
	} {
		if got := nearest(name, names); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	for _, c := range []struct {
		from, to string
		want     int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "", 2}, {"kitten", "sitting", 3}, {"größe", "grösse", 2}} {
		if got := distance(c.from, c.to); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.from, c.to, got, c.want)
		}
	}
}

// A downstream is a part of the names of its routes.
func TestDownstreamIsKnownByItsRoutes(t *testing.T) {
	t.Parallel()
	var v vocabulary
	v.route("order.placed", "analytics: orders")
	v.route("order.shipped", "order.shipped")
	for name, want := range map[string]string{"analytics": "", "analitics": "no relay has reported a downstream analitics; did you mean analytics?", "order.shipped": "no relay has reported a downstream order.shipped"} {
		if got, err := v.unknown(t.Context(), nil, control.Downstream, name); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
}

// typed runs the program in this process as if an operator typed answer on a terminal.
func typed(t *testing.T, answer string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := &process{stdin: strings.NewReader(answer), stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, asks: true}
	status = run(context.WithoutCancel(t.Context()), p, args)
	return status, out.String(), errs.String()
}

func TestPauseOfAMisspeltNameIsSaid(t *testing.T) {
	t.Parallel()
	url, _ := plantSQLite(t)
	for _, c := range []struct{ args, errs string }{
		{"--topic order.#", ""},
		{"--topic order.placed", ""},
		{"--topic #", ""},
		{"--topic ordr.#", "see that the name is right: no recent event, route or relay has topic ordr.#\n"},
		{"--topic order.plced", "see that the name is right: no recent event, route or relay has topic order.plced; did you mean order.placed?\n"},
		{"--downstream analytics", "see that the name is right: no relay has reported a downstream analytics\n"},
	} {
		status, out, errs := call(t, nil, append(strings.Fields("pause -m x "+c.args), "--outbox", url)...)
		if status != exitOK || !strings.Contains(out, " is paused") || errs != c.errs {
			t.Errorf("%s: %d, %q, %q", c.args, status, out, errs)
		}
	}
	args := []string{"pause", "--outbox", url, "--topic", "order.plcd", "-m", "x"}
	status, out, errs := typed(t, "n\n", args...)
	if status != exitFailed || out != "" || !strings.Contains(errs, "did you mean order.placed?\npause topic order.plcd all the same? [y/N]") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	if _, out, _ = call(t, nil, "status", "--outbox", url); strings.Contains(out, "order.plcd") {
		t.Error("a declined pause is in force")
	}
	for answer, more := range map[string]string{"y\n": "--yes=false", "": "--yes"} {
		if status, out, errs = typed(t, answer, append(args, more)...); status != exitOK || !strings.HasPrefix(out, "topic order.plcd is paused") {
			t.Errorf("%d, %q, %q", status, out, errs)
		}
	}
}

func TestFilterThatFindsNothingIsCheckedForTypingErrors(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	for _, c := range []struct{ args, errs string }{
		{"dead list --topic order.plced", "no recent event, route or relay has topic order.plced; did you mean order.placed?\n"},
		{"dead list --each --topic order.plced", "did you mean order.placed?\n"},
		{"dead redrive -m x --topic order.plced", "did you mean order.placed?\n"},
		{"dead list --consumer stok/reserve --inbox URL", "no consumer stok/reserve has registered yet; did you mean stock/reserve?\n"},
		{"events --topic order.plced", "did you mean order.placed?\n"},
		{"events --topic order.placed --key none", ""},
	} {
		_, out, errs := call(t, nil, append(strings.Fields(strings.ReplaceAll(c.args, "URL", url)), "--outbox", url)...)
		if out != "" || !strings.Contains(errs, c.errs) || c.errs == "" && strings.Contains(errs, "has topic") {
			t.Errorf("%s: %q, %q", c.args, out, errs)
		}
	}
}

func TestKeyInPlaceOfAnID(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	one := id(1).String()
	r.exec(`UPDATE boxpair.outbox_events SET key = '42' WHERE id = 1`, `UPDATE boxpair.outbox_events SET key = '20260101' WHERE id = 2`)
	r.says(exitOK, "show 42", one)
	r.says(exitFound, "tree 42", one[:8]+"  order.placed, key 42")
	r.says(exitFound, "tree 20260101", id(2).String()[:8])
	for _, c := range []struct{ args, out, errs string }{
		{"events 42", one[:8], ""},
		{"events 20260101", id(2).String()[:8], ""},
		{"events 42 43", "", "42: want a UUID, or at least its first 8 digits, or one key alone"},
		{"tree none", "", "none: no given database knows an event or message by this ID, key, source or correlation ID"},
		{"tree " + strings.Repeat("0", 32), "", "no given database knows an event"},
		{"tree " + strings.Repeat("1", 32), "", "no given database knows an event"},
		{"dead show 42", "", "42 is no dispatch ID, nor at least its first 8 digits; as a key: --key 42; boxpair why 42 finds the IDs of a key, source or correlation ID"},
		{"dead redrive 'a b' -m x", "", "as a key: --key "},
		{"dead show 20260101", "", "no dispatch ID begins so here; boxpair why also finds keys, sources and correlation IDs"},
		{"dead edit 42 --header a=b -m x", "", "42 is no dispatch ID, nor at least its first 8 digits; boxpair why 42 finds"},
	} {
		_, out, errs := call(t, nil, append(strings.Fields(c.args), "--outbox", r.url)...)
		if !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) || (c.out == "") != (out == "") {
			t.Errorf("%s: %q, %q", c.args, out, errs)
		}
	}
	r.exec(`UPDATE boxpair.outbox_events SET key = '42'`)
	if _, out, errs := call(t, nil, "tree", "42", "--outbox", r.url); !strings.HasPrefix(out, one[:8]) || !strings.Contains(out, "\n"+id(2).String()[:8]) {
		t.Errorf("%q, %q", out, errs)
	}
}

func TestShellCompletesNames(t *testing.T) {
	t.Parallel()
	url, _ := plantSQLite(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	ok(t, os.WriteFile(file, []byte("contexts:\n  shop: {outbox: "+url+", inbox: "+url+"}\n  test: {}\n"), 0o600))
	for args, want := range map[string]string{
		"why --config FILE --context":                       "shop\ntest\n:4\n",
		"pause --config FILE --context shop --topic":        "order.placed\n:4\n",
		"dead list --config FILE --context shop --consumer": "stock/reserve\n:4\n",
		"effects list --state":                              "pending\ndoing\nanswered\nuncertain\ndead\ndone\ndiscarded\n:4\n",
		"events --outbox URL --state":                       "pending\n",
		"pause --outbox sqlite:/none/of/these.db --topic":   ":4\n",
	} {
		words := strings.Fields(strings.NewReplacer("FILE", file, "URL", url).Replace("__complete " + args))
		if status, out, errs := call(t, nil, append(words, "")...); status != exitOK || !strings.HasPrefix(out, want) {
			t.Errorf("%s: %d, %q, %q, want %q", args, status, out, errs, want)
		}
	}
	if _, out, _ := call(t, []string{"BOXPAIR_CONFIG=" + file}, "__complete", "why", "--context", ""); !strings.HasPrefix(out, "shop\ntest\n") {
		t.Errorf("the file of the environment: %q", out)
	}
}

func TestSearchOfAMisspeltNameIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`)
	for args, want := range map[string]string{
		"deferred list --topic order.placd":                              "did you mean order.placed?",
		"deferred cancel --topic order.placd -m x":                       "did you mean order.placed?",
		"replay --topic order.placd --dry-run":                           "did you mean order.placed?",
		"effects redrive --consumer stock/resrve --state dead -m mended": "did you mean stock/reserve?",
	} {
		side := "--outbox"
		if strings.HasPrefix(args, "effects") {
			side = "--inbox"
		}
		_, out, errs := call(t, nil, append(strings.Fields(args), side, r.url)...)
		if !strings.Contains(errs, want) {
			t.Errorf("%s: %q, %q", args, out, errs)
		}
	}
}
