// Package field checks the fields of configurations, and bounds the texts that stores keep.
package field

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/internal/text"
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
	case s != text.Clean(s, most):
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

// Key returns a key that a store can keep and index: the key itself, or a hash of a key that is too
// long or no text.
func Key(key string) string {
	if text.Clean(key, MaxKey) == key {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Error returns the text of err as a store keeps it.
func Error(err error) string { return text.Clean(err.Error(), MaxError) }

// Reason checks the reason that an operator gives.
func Reason(reason string) error {
	if reason == "" || text.Clean(reason, MaxError) != reason {
		return errors.New("a reason is required, in at most 1 KiB of text")
	}
	return nil
}
