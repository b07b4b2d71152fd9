package main

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/audit"
)

// meanings are the kinds of findings in words.
var meanings = map[audit.Kind]string{
	audit.NotApplied:    "left the outbox, and is missing at a consumer that expects it",
	audit.NotCommitted:  "applied, and never committed by a given outbox",
	audit.DigestDiffers: "applied with other content than was committed",
	audit.Pending:       "in the queue for longer than the grace time",
	audit.Parked:        "is retried, or follows a retried one",
	audit.Dead:          "attempts are used up; waits for an operator",
	audit.TooOld:        "set aside: the consumer has forgotten its time",
	audit.Altered:       "set aside: its ID came with other content before",
	audit.Discarded:     "given up by an operator",
	audit.LogMissing:    "queued or parked, and missing in the log",
}

// printReport prints a report as text.
func (d *display) printReport(p *process, r *audit.Report) error {
	out := p.stdout
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printSources(w, r)
	printCounts(w, r)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(r.Examples) > 0 {
		fmt.Fprint(out, "\nFindings\n")
		for i := range r.Examples {
			d.printFinding(p, &r.Examples[i])
		}
	}
	verdict := "Clean."
	if !r.Clean {
		verdict = "Not clean."
	} else if !slices.ContainsFunc(r.Outboxes, func(o audit.OutboxReport) bool { return o.Events > 0 }) {
		verdict = "There are none: nothing was checked. Events younger than --grace are left out."
	}
	fmt.Fprintln(out)
	d.wrap(p, out, "", "", fmt.Sprintf("Events created %s. %s", span(r.From, r.Until), verdict))
	return nil
}

func printSources(w io.Writer, r *audit.Report) {
	fmt.Fprint(w, "Outbox\tevents\tnobody expects\tretained since\n")
	for _, o := range r.Outboxes {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", plain(o.Name), o.Events, o.NobodyExpects, instant(o.RetainedSince, "the beginning"))
	}
	if len(r.Consumers) > 0 {
		fmt.Fprint(w, "\nConsumer\tdatabase\texpected\tclaims\tforgotten until\n")
	}
	for _, c := range r.Consumers {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", plain(c.Name), plain(c.Database), c.Expected, c.Claims, instant(c.ForgottenUntil, "-"))
	}
	if len(r.Unchecked) > 0 {
		fmt.Fprintf(w, "\nNot checked: %s\n", plain(strings.Join(r.Unchecked, ", ")))
	}
}

func printCounts(w io.Writer, r *audit.Report) {
	fmt.Fprint(w, "\nKind\tcount\t\n")
	for _, kind := range audit.Kinds() {
		accepted := ""
		if slices.Contains(r.Accepted, kind) {
			accepted = " (accepted)"
		}
		fmt.Fprintf(w, "%s\t%d\t%s%s\n", kind, r.Findings[kind], meanings[kind], accepted)
	}
	fmt.Fprintf(w, "\nNo findings:\nin flight\t%d\tyounger than the grace time, or delivered within it\n", r.InFlight)
	for _, row := range []struct {
		what  string
		n     int
		about string
	}{
		{"forgotten", r.Outside.Forgotten, "the consumer has forgotten the time of the event"},
		{"before consumer", r.Outside.BeforeConsumer, "older than the consumer"},
		{"not retained", r.Outside.NotRetained, "applied, from a time of which an outbox has removed events"},
		{"removed", r.Outside.Removed, "removed during the audit"},
	} {
		if row.n > 0 {
			fmt.Fprintf(w, "%s\t%d\t%s\n", row.what, row.n, row.about)
		}
	}
	for _, state := range sortedKeys(r.Waiting) {
		fmt.Fprintf(w, "%s\t%d\twaits as planned\n", plain(state), r.Waiting[state])
	}
}

func (d *display) printFinding(p *process, f *audit.Finding) {
	fields := []string{string(f.Kind)}
	add := func(name, value string) {
		if value != "" {
			fields = append(fields, name+" "+plain(value))
		}
	}
	if f.DispatchID != uuid.Nil {
		add("id", f.DispatchID.String())
	}
	add("consumer", f.Consumer)
	add("in", f.Database)
	if f.Seq != 0 {
		add("number", strconv.FormatInt(f.Seq, 10))
	}
	add("topic", f.Topic)
	add("state", f.State)
	if f.Attempts > 0 {
		add("attempts", strconv.Itoa(f.Attempts))
	}
	add("created", instant(f.Created, ""))
	add("since", instant(f.Since, ""))
	add("why", f.Why)
	d.wrap(p, p.stdout, "  ", "    ", strings.Join(fields, ", "))
}

func instant(t time.Time, zero string) string {
	if t.IsZero() {
		return zero
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

func span(from, until time.Time) string {
	if from.IsZero() {
		return "before " + instant(until, "")
	}
	return "from " + instant(from, "") + " until " + instant(until, "")
}

// plain returns text without control characters, for a terminal: texts in a database may come from
// any sender.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, text)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sorted yields the entries of a map by key.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, name := range sortedKeys(m) {
			if !yield(name, m[name]) {
				return
			}
		}
	}
}
