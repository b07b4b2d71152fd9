// Package field checks that texts of a configuration or an event can be stored and sent. Errors
// name the field, never its value.
package field

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxName is the limit of AMQP for short strings, in bytes.
const MaxName = 255

// Text checks that s has between least and [MaxName] bytes of valid UTF-8 without NUL.
func Text(name, s string, least int) error {
	switch {
	case len(s) < least:
		return fmt.Errorf("%s: is required", name)
	case len(s) > MaxName:
		return fmt.Errorf("%s: has %d bytes, more than %d", name, len(s), MaxName)
	}
	return Value(name, s)
}

// Value checks that s is valid UTF-8 without NUL.
func Value(name, s string) error {
	switch {
	case !utf8.ValidString(s):
		return fmt.Errorf("%s: is not valid UTF-8", name)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%s: holds a NUL byte", name)
	}
	return nil
}
