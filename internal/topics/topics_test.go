package topics_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

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

// searched is the definition: it tries every number of words for each "#".
func searched(pattern, words []string) bool {
	switch {
	case len(pattern) == 0:
		return len(words) == 0
	case pattern[0] == "#":
		return searched(pattern[1:], words) || len(words) > 0 && searched(pattern, words[1:])
	default:
		return len(words) > 0 && (pattern[0] == "*" || pattern[0] == words[0]) && searched(pattern[1:], words[1:])
	}
}

func TestPatternsMatchAsASearchThroughAllSplits(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(words []string, most int) []string {
		drawn := make([]string, 1+random.IntN(most))
		for i := range drawn {
			drawn[i] = words[random.IntN(len(words))]
		}
		return drawn
	}
	matched := 0
	for range 200_000 {
		pattern, words := draw([]string{"a", "b", "*", "#", ""}, 6), draw([]string{"a", "b", "", "#"}, 7)
		want := searched(pattern, words)
		if want {
			matched++
		}
		if got := topics.Match(strings.Join(pattern, "."), strings.Join(words, ".")); got != want {
			t.Fatalf("%q matches %q: %v", pattern, words, got)
		}
	}
	if matched < 20_000 {
		t.Errorf("only %d matched", matched)
	}
}

func TestPatternOfManyWildcardsTakesNoSearch(t *testing.T) {
	t.Parallel()
	pattern := strings.Repeat("#.a.", 60) + "b" // within the 255 bytes of a pause
	begun := time.Now()
	if topics.Match(pattern, strings.Repeat("a.", 120)+"c") {
		t.Error("matches")
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("took %v", took)
	}
}
