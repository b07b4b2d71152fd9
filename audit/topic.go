package audit

import "strings"

// matches tells whether a topic fits a pattern, by the rules of a RabbitMQ topic exchange: words
// are separated by dots, * stands for one word and # for any number of words.
func matches(pattern, topic string) bool {
	if pattern == topic || pattern == "#" {
		return true
	}
	if !strings.ContainsAny(pattern, "*#") {
		return false
	}
	return matchWords(strings.Split(pattern, "."), strings.Split(topic, "."))
}

func matchWords(pattern, topic []string) bool {
	for len(pattern) > 0 {
		switch {
		case pattern[0] == "#":
			for i := range len(topic) + 1 {
				if matchWords(pattern[1:], topic[i:]) {
					return true
				}
			}
			return false
		case len(topic) == 0, pattern[0] != "*" && pattern[0] != topic[0]:
			return false
		}
		pattern, topic = pattern[1:], topic[1:]
	}
	return len(topic) == 0
}
