package topics_test

import (
	"testing"

	"github.com/boxpair/boxpair/internal/topics"
)

func TestPatternsMatchWordsAsTopicExchangesDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, topic string
		want           bool
	}{
		{"order.placed", "order.placed", true},
		{"order.placed", "order.placed.again", false},
		{"order.placed", "order", false},
		{"order.*", "order.placed", true},
		{"order.*", "order", false},
		{"order.*", "order.placed.again", false},
		{"*.placed", "order.placed", true},
		{"#", "", true},
		{"#", "order.placed", true},
		{"order.#", "order", true},
		{"order.#", "order.placed.again", true},
		{"order.#", "orders", false},
		{"#.again", "order.placed.again", true},
		{"#.again", "again", true},
		{"#.*.again", "again", false},
		{"order.#.again", "order.again", true},
		{"order.#.#.again", "order.a.b.c.again", true},
		{"", "order", false},
	} {
		if got := topics.Match(c.pattern, c.topic); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.topic, got)
		}
		if got := topics.MatchAny([]string{"never", c.pattern}, c.topic); got != c.want {
			t.Errorf("%q or another pattern matches %q: %v", c.pattern, c.topic, got)
		}
	}
}

func TestWildcardsAreWholeWords(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]bool{
		"order.placed": true, "*": true, "#": true, "order.#.placed.*": true, "": true, "a..b": true,
		"order.a*": false, "#order": false, "**": false, "order.#.a#b": false,
	} {
		if err := topics.CheckPattern(pattern); (err == nil) != want {
			t.Errorf("pattern %q: %v", pattern, err)
		}
	}
}
