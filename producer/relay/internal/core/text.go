package core

import (
	"strings"
	"unicode/utf8"
)

const maxStoredError = 1 << 10

// storedError returns err's text in a form that can be stored: bounded, valid UTF-8, without NUL.
func storedError(err error) string {
	if err == nil {
		return ""
	}
	return bounded(err.Error(), maxStoredError)
}

// bounded returns text as valid UTF-8 without NUL, in at most limit bytes.
func bounded(text string, limit int) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= limit {
		return text
	}
	text = text[:limit]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text
}
