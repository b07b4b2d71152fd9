// Package topics matches topics with patterns in the syntax of AMQP's topic exchanges: words
// between dots, where "*" stands for one word and "#" for any number of words, including zero.
package topics

import (
	"fmt"
	"slices"
	"strings"
)

// Match tells whether a topic matches a pattern.
func Match(pattern, topic string) bool {
	return matches(strings.Split(pattern, "."), strings.Split(topic, "."))
}

// MatchAny tells whether a topic matches one of the patterns.
func MatchAny(patterns []string, topic string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return Match(pattern, topic) })
}

// matches tells whether the words of a topic match the words of a pattern. Only the latest "#" takes
// more words when the rest of the pattern does not match: what an earlier one could take, the latest
// takes as well. So the time is at most that of the pattern times the topic; with a search through all
// "#", a pattern from the database could keep a relay busy for seconds.
func matches(pattern, words []string) bool {
	p, w := 0, 0
	rest, taken := -1, 0 // the pattern after the latest "#", and the words before its match
	for w < len(words) {
		switch {
		case p < len(pattern) && pattern[p] == "#":
			p++
			rest, taken = p, w
		case p < len(pattern) && (pattern[p] == "*" || pattern[p] == words[w]):
			p++
			w++
		case rest >= 0:
			taken++
			p, w = rest, taken
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == "#" {
		p++
	}
	return p == len(pattern)
}

// CheckPattern returns an error if "*" or "#" is a part of a longer word of the pattern.
func CheckPattern(pattern string) error {
	for word := range strings.SplitSeq(pattern, ".") {
		if len(word) > 1 && strings.ContainsAny(word, "*#") {
			return fmt.Errorf("in %q, * and # stand for whole words", pattern)
		}
	}
	return nil
}
