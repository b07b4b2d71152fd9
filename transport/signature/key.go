package signature

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
)

// MinSecret is the smallest length of a secret, in bytes.
const MinSecret = 32

// Key is a secret that signers share with verifiers: every holder can both sign and verify.
// Printing a Key shows no secret.
type Key struct {
	// ID names the key on the wire: 1 to 64 characters out of letters, digits, ".", "_" and
	// "-". Never use an ID again for another secret.
	ID string
	// Secret has at least [MinSecret] bytes, drawn at random and not chosen.
	Secret []byte
}

// String names k without its secret.
func (k Key) String() string { return "signing key " + strconv.Quote(k.ID) }

// GoString is String.
func (k Key) GoString() string { return k.String() }

// LogValue is String.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

func (k Key) validate() error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	var errs []error
	if len(k.ID) == 0 || len(k.ID) > 64 || strings.Trim(k.ID, allowed) != "" {
		errs = append(errs, fmt.Errorf("ID: %q is not 1 to 64 letters, digits, dots, underscores and hyphens", k.ID))
	}
	if len(k.Secret) < MinSecret {
		errs = append(errs, fmt.Errorf("Secret: has %d bytes, fewer than %d", len(k.Secret), MinSecret))
	}
	return errors.Join(errs...)
}

// hiddenKey is a key whose secret fmt cannot print: fmt calls no methods of unexported fields, and
// prints a function as an address.
type hiddenKey struct {
	id     string
	secret func() []byte
}

// hidden returns a copy of k that cannot be printed.
func (k Key) hidden() hiddenKey {
	secret := slices.Clone(k.Secret)
	return hiddenKey{id: k.ID, secret: func() []byte { return secret }}
}
