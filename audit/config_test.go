package audit

import (
	"strings"
	"testing"
	"time"
)

func TestTopicsMatchAsOnARabbitMQExchange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, topic string
		want           bool
	}{
		{"order.placed", "order.placed", true}, {"order.placed", "order.paid", false},
		{"order.*", "order.placed", true}, {"order.*", "order", false}, {"order.*", "order.a.b", false},
		{"order.#", "order", true}, {"order.#", "order.a.b", true}, {"order.#", "orders.a", false},
		{"#", "anything.at.all", true}, {"*", "anything.at.all", false}, {"*", "one", true},
		{"#.paid", "paid", true}, {"#.paid", "a.b.paid", true}, {"#.paid", "a.paid.b", false},
		{"a.#.b.*", "a.x.y.b.c", true}, {"a.#.b.*", "a.b", false},
		{"order*", "orders", false}, {"", "x", false},
	} {
		if got := matches(c.pattern, c.topic); got != c.want {
			t.Errorf("matches(%q, %q) = %v", c.pattern, c.topic, got)
		}
	}
}

func TestConfigNamesEveryWrongField(t *testing.T) {
	t.Parallel()
	now := time.Now()
	_, err := New(Config{
		Outboxes: []NamedOutbox{{Name: "a"}},
		Inboxes:  []NamedInbox{{Name: "b"}},
		Expect:   []Expectation{{Consumer: "", Topics: []string{"x"}}, {Consumer: "c"}, {Consumer: "c", Topics: []string{"", "x"}}},
		Grace:    -1, Examples: -1, PageSize: 50_000, From: now, Until: now, Accept: []Kind{"lost"},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"Outboxes: 0 has no Outbox", "Inboxes: 0 has no Inbox", "Expect: a consumer has no name", `Expect: consumer "c": a topic is missing`,
		`Expect: consumer "c" is named twice`, "Grace: ", "Examples: ", "PageSize: ", "Until: ", `Accept: there is no kind "lost"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "Outboxes: at least one is required"},
		{Config{Inboxes: []NamedInbox{{}}}, "Expect: nothing says"},
		{Config{Expect: []Expectation{{Consumer: "c", Topics: []string{"x"}}}}, `Expect: there is no inbox to find consumer "c" in`},
		{Config{Expect: make([]Expectation, 65), Inboxes: []NamedInbox{{}}}, "more than 64"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New() = %v, want %q", err, c.want)
		}
	}
}

func TestLongErrorsAreCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	if got := shorten("short"); got != "short" {
		t.Errorf("got %q", got)
	}
	got := shorten("x" + strings.Repeat("ä", 300))
	if !strings.HasSuffix(got, "ä…") || len(got) > maxWhy+len("…") {
		t.Errorf("got %q", got)
	}
}
