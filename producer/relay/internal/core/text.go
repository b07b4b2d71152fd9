package core

import "github.com/boxpair/boxpair/internal/text"

const maxStoredError = 1 << 10 // bytes

// storedError returns err's text in a form that can be stored, "" for nil.
func storedError(err error) string {
	if err == nil {
		return ""
	}
	return text.Clean(err.Error(), maxStoredError)
}
