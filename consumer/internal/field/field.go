// Package field checks the fields of configurations, and makes texts such as databases keep.
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
	// MaxKey is how many bytes of a topic or a key are kept.
	MaxKey = 255
	// MaxError is how many bytes of an error or a reason are kept.
	MaxError = 1 << 10

	maxNumber = 1 << 20
)

// Problems collects what is wrong with a configuration.
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

// Duration makes a d of 0 def, and refuses a negative one.
func (p *Problems) Duration(field string, d *time.Duration, def time.Duration) {
	switch {
	case *d == 0:
		*d = def
	case *d < 0:
		p.Addf("%s: %v is negative", field, *d)
	}
}

// Number makes an n of 0 def, and refuses a negative or very large one.
func (p *Problems) Number(field string, n *int, def int) {
	switch {
	case *n == 0:
		*n = def
	case *n < 0 || *n > maxNumber:
		p.Addf("%s: %d is not between 1 and %d", field, *n, maxNumber)
	}
}

// Key returns a key as a store can keep and index it: itself, or a hash of
// one that is too long or no text.
func Key(key string) string {
	if Clean(key, MaxKey) == key {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Clean returns s as valid UTF-8 without NUL, which databases do not keep in text, cut to
// at most so many bytes.
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
