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

// matches tells whether the words of a topic match the words of a pattern.
func matches(pattern, words []string) bool {
	for i, p := range pattern {
		if p == "#" {
			for n := len(words) - i; n >= 0; n-- {
				if matches(pattern[i+1:], words[len(words)-n:]) {
					return true
				}
			}
			return false
		}
		if i >= len(words) || p != "*" && p != words[i] {
			return false
		}
	}
	return len(words) == len(pattern)
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
