// Package text turns text of others, such as errors of a broker, into a form that databases keep, or
// that a shell takes as one word.
package text

import (
	"strings"
	"unicode/utf8"
)

// Clean returns s as valid UTF-8 in at most most bytes, without NUL, which databases do not keep in
// text. Bytes that are no text and NUL become U+FFFD. Clean text that is short enough is returned as
// it is.
func Clean(s string, most int) string {
	if len(s) <= most && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// Quoted returns word as a shell reads it as one word: quoted, if it needs that.
func Quoted(word string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@,=+%"
	if word != "" && strings.Trim(word, safe) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
