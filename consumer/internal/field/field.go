// Package field checks the fields of configurations, and turns texts into a form that databases
// keep.
package field

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxKey is the maximum of bytes of a stored topic or key.
	MaxKey = 255
	// MaxError is the maximum of bytes of a stored error or reason.
	MaxError = 1 << 10

	maxNumber = 1 << 20
)

// Problems collects the errors of a configuration.
type Problems []error

// Addf adds a problem.
func (p *Problems) Addf(format string, args ...any) {
	*p = append(*p, fmt.Errorf(format, args...))
}

// Err returns all problems, or nil.
func (p *Problems) Err() error { return errors.Join(*p...) }

// Text checks that s has 1 to most bytes of valid UTF-8 without NUL.
func (p *Problems) Text(field, s string, most int) {
	switch {
	case s == "":
		p.Addf("%s: is required", field)
	case len(s) > most:
		p.Addf("%s: has %d bytes, more than %d", field, len(s), most)
	case s != Clean(s, most):
		p.Addf("%s: is not valid UTF-8 without NUL", field)
	}
}

// Duration sets a zero d to def, and refuses a negative d.
func (p *Problems) Duration(field string, d *time.Duration, def time.Duration) {
	switch {
	case *d == 0:
		*d = def
	case *d < 0:
		p.Addf("%s: %v is negative", field, *d)
	}
}

// Number sets a zero n to def, and refuses a negative or very large n.
func (p *Problems) Number(field string, n *int, def int) {
	switch {
	case *n == 0:
		*n = def
	case *n < 0 || *n > maxNumber:
		p.Addf("%s: %d is not between 1 and %d", field, *n, maxNumber)
	}
}

// Key returns a key as a store can keep and index it: the key itself, or a hash of a key that is too
// long or no text.
func Key(key string) string {
	if Clean(key, MaxKey) == key {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Clean returns s as valid UTF-8, cut to at most most bytes, and without NUL, which databases do not
// keep in text.
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

// Error returns the text of err as a store keeps it.
func Error(err error) string { return Clean(err.Error(), MaxError) }

// Reason checks the reason that an operator gives.
func Reason(reason string) error {
	if reason == "" || Clean(reason, MaxError) != reason {
		return errors.New("a reason is required, in at most 1 KiB of text")
	}
	return nil
}
