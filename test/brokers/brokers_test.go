package brokers

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	natspkg "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"

	"github.com/boxpair/boxpair/transport/transporttest"
)

// publisher is a column of the table.
type publisher struct {
	name   string
	fails  []string // the cases that it is known to fail
	target func(t *testing.T) *transporttest.Target
}

func publishers() []publisher {
	return []publisher{
		{"`transport/memory`", nil, func(*testing.T) *transporttest.Target { return newInProcess().target() }},
		{"`transport/amqp`", nil, func(t *testing.T) *transporttest.Target { return newRabbit(t).ours() }},
		{"`transport/amqp`, `Envelope`", nil, func(t *testing.T) *transporttest.Target { return newRabbit(t).enveloped(1) }},
		{"`transport/amqp`, `BatchSize`", nil, func(t *testing.T) *transporttest.Target { return newRabbit(t).enveloped(8) }},
		{
			"watermill-amqp v2", []string{"unroutable", "removed topic"},
			func(t *testing.T) *transporttest.Target { return newRabbit(t).stock() },
		},
		{"watermill-nats v2, `JSONMarshaler`", nil, func(t *testing.T) *transporttest.Target {
			return newJetStream(t, natspkg.JSONMarshaler{}).stable()
		}},
		{"watermill-nats v2, `NATSMarshaler`", []string{"odd content"}, func(t *testing.T) *transporttest.Target {
			return newJetStream(t, &natspkg.NATSMarshaler{}).stable()
		}},
		{"watermill-nats v2, `pkg/jetstream`", []string{"odd content"}, func(t *testing.T) *transporttest.Target {
			return newJetStream(t, &natspkg.NATSMarshaler{}).beta()
		}},
		{"watermill-kafka v3, key as partition key", nil, func(t *testing.T) *transporttest.Target { return newKafka(t).safe() }},
		{"watermill-kafka v3, `DefaultMarshaler`", []string{"order"}, func(t *testing.T) *transporttest.Target { return newKafka(t).plain() }},
		{"watermill-sql v4, PostgreSQL", nil, func(t *testing.T) *transporttest.Target { return newTable(t).target() }},
	}
}

func TestPublishersAreAsTheDocumentSays(t *testing.T) {
	t.Parallel()
	list := publishers()
	reports := make([]transporttest.Report, len(list))
	t.Run("publisher", func(t *testing.T) {
		for i, p := range list {
			t.Run(strings.ReplaceAll(p.name, "/", " "), func(t *testing.T) {
				t.Parallel()
				reports[i] = check(t, p.name, p.target(t))
				if failed := reports[i].Failed(); !slices.Equal(failed, p.fails) {
					t.Errorf("fails %q, want %q", failed, p.fails)
				}
			})
		}
	})
	if !t.Failed() {
		compare(t, list, reports)
	}
}

const (
	path  = "../../docs/transports.md"
	begin = "<!-- begin: made by make brokers-doc -->\n"
	end   = "<!-- end -->\n"
)

// row is the line of a publisher in the table of the document.
func row(name string, report transporttest.Report) string {
	marks := map[transporttest.Verdict]string{
		transporttest.Passed: "yes", transporttest.Failed: "**no**", transporttest.NotRun: "-",
	}
	line := "| " + name + " |"
	for i := range report {
		line += " " + marks[report[i].Verdict] + " |"
	}
	return line + "\n"
}

// table is what stands in the document: a row for each publisher and a column for each case, and
// what the cases are. Publishers that did not run, since the tests were chosen by name, have the
// row that they had.
func table(list []publisher, reports []transporttest.Report, old string) string {
	names, line := "| publisher |", "|---|"
	for _, c := range transporttest.Cases() {
		names += " " + c.Name + " |"
		line += "---|"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", names, line)
	for i, p := range list {
		if reports[i] != nil {
			b.WriteString(row(p.name, reports[i]))
			continue
		}
		for was := range strings.Lines(old) {
			if strings.HasPrefix(was, "| "+p.name+" |") {
				b.WriteString(was)
			}
		}
	}
	b.WriteString("\n| case | asks | otherwise |\n|---|---|---|\n")
	for _, c := range transporttest.Cases() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Name, c.Asks, c.Otherwise)
	}
	return b.String()
}

// compare compares the document with what came out, or writes it.
func compare(t *testing.T, list []publisher, reports []transporttest.Report) {
	t.Helper()
	text, err := os.ReadFile(path)
	ok(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has not the lines %q and %q", path, begin, end)
	}
	now := table(list, reports, old)
	switch {
	case now == old:
	case *document:
		ok(t, os.WriteFile(path, []byte(before+begin+now+end+after), 0o600))
	default:
		t.Errorf("%s has another table: run make brokers-doc", path)
	}
}
