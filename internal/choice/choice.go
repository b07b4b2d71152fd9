// Package choice maps settings with a few values to words, for files and the environment.
package choice

import (
	"fmt"
	"slices"
	"strings"
)

// Text returns the word at index value in words. An error begins with setting.
func Text[T ~uint8](setting string, words []string, value T) ([]byte, error) {
	if int(value) >= len(words) {
		return nil, fmt.Errorf("%s: %d is none of its values", setting, value)
	}
	return []byte(words[value]), nil
}

// Parse sets value to the index of text in words. An error begins with setting, and leaves value
// unchanged.
func Parse[T ~uint8](setting string, words []string, text []byte, value *T) error {
	i := slices.Index(words, string(text))
	if i < 0 {
		return fmt.Errorf("%s: %q is none of %s", setting, text, strings.Join(words, ", "))
	}
	*value = T(i)
	return nil
}
