package schema

import (
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrUnreadable is wrapped by the error of a payload that this consumer can never read:
	// decoding fails, the content type differs, or the value is not valid.
	ErrUnreadable = errors.New("payload cannot be read")
	// ErrNewer is wrapped by the error of a payload whose schema version is later than the
	// consumer's.
	ErrNewer = errors.New("payload has a later schema version than this consumer knows")
	// ErrInvalid is wrapped by the error of a value that Config.Validate refuses.
	ErrInvalid = errors.New("value is not valid")
)

// Config describes a type of event whose payload is a T.
type Config[T any] struct {
	// Name is the event's type. Required.
	Name string
	// Topic is where events of this type are published. Defaults to Name.
	Topic string
	// Version is the current version of T's schema, from 1. Defaults to 1.
	Version int
	// Codec encodes and decodes. Defaults to [JSON].
	Codec Codec
	// Reads are further codecs for reading: for payloads of other producers, or from before Codec
	// was chosen. The content type of a message selects the codec. Defaults to none.
	Reads []Codec
	// Key returns the ordering key of a value's events. Defaults to none.
	Key func(T) string
	// Validate refuses invalid values, before they are written and after they were read. Defaults
	// to accepting all.
	Validate func(T) error
	// Upcast has, for each earlier version that may still be read, the function that turns its
	// payload into the next version. There must be no gap up to Version. Defaults to none.
	Upcast map[int]Upcaster
	// Unversioned is the version of payloads without a version, as from publishers that do not know
	// versions. Defaults to Version.
	Unversioned int
}

// Upcaster turns the payload of one version into the payload of the next version. Both have the
// encoding of codec.
type Upcaster func(codec Codec, payload []byte) ([]byte, error)

// Up returns an upcaster that decodes an Old, converts it with fn, and encodes the New.
func Up[Old, New any](fn func(Old) (New, error)) Upcaster {
	return func(codec Codec, payload []byte) ([]byte, error) {
		var old Old
		if err := codec.Unmarshal(payload, &old); err != nil {
			return nil, err
		}
		next, err := fn(old)
		if err != nil {
			return nil, err
		}
		return codec.Marshal(next)
	}
}

// Type is a type of event whose payload is a T. It is safe for concurrent use.
type Type[T any] struct {
	cfg    Config[T]
	codecs []Codec
	oldest int
}

// New returns the type that cfg describes. The error names every field that is wrong.
func New[T any](cfg Config[T]) (*Type[T], error) {
	if cfg.Topic == "" {
		cfg.Topic = cfg.Name
	}
	if cfg.Version == 0 {
		cfg.Version = 1
	}
	if cfg.Codec == nil {
		cfg.Codec = JSON{}
	}
	if cfg.Unversioned == 0 {
		cfg.Unversioned = cfg.Version
	}
	t := &Type[T]{cfg: cfg, codecs: append([]Codec{cfg.Codec}, cfg.Reads...), oldest: cfg.Version}
	for cfg.Upcast[t.oldest-1] != nil {
		t.oldest--
	}
	if err := t.validate(); err != nil {
		return nil, fmt.Errorf("schema config: %w", err)
	}
	return t, nil
}

func (t *Type[T]) validate() error {
	var errs []error
	c := &t.cfg
	if c.Name == "" {
		errs = append(errs, errors.New("Name: is required"))
	}
	if c.Version < 1 {
		errs = append(errs, errors.New("Version: is less than 1"))
	}
	for version, up := range c.Upcast {
		switch {
		case up == nil:
			errs = append(errs, fmt.Errorf("Upcast: version %d has no function", version))
		case version < 1 || version >= c.Version:
			errs = append(errs, fmt.Errorf("Upcast: version %d is not before Version %d", version, c.Version))
		case version < t.oldest:
			errs = append(errs, fmt.Errorf("Upcast: version %d does not lead to Version %d without a gap", version, c.Version))
		}
	}
	if c.Version >= 1 && (c.Unversioned < t.oldest || c.Unversioned > c.Version) {
		errs = append(errs, fmt.Errorf("Unversioned: version %d cannot be read", c.Unversioned))
	}
	for i, codec := range t.codecs {
		if codec == nil {
			errs = append(errs, fmt.Errorf("Reads: codec %d is nil", i-1))
			continue
		}
		if slices.ContainsFunc(t.codecs[:i], func(other Codec) bool {
			return other != nil && sameMedia(other.ContentType(), codec.ContentType())
		}) {
			errs = append(errs, fmt.Errorf("Reads: two codecs for %s", codec.ContentType()))
		}
	}
	return errors.Join(errs...)
}

// Name returns the name of the type.
func (t *Type[T]) Name() string { return t.cfg.Name }

// Topic returns where events of the type are published.
func (t *Type[T]) Topic() string { return t.cfg.Topic }

// Version returns the version that Encode writes.
func (t *Type[T]) Version() int { return t.cfg.Version }

// ContentType returns the media type of what Encode returns.
func (t *Type[T]) ContentType() string { return t.cfg.Codec.ContentType() }

// Key returns the key of value, or "" if the type has none.
func (t *Type[T]) Key(value T) string {
	if t.cfg.Key == nil {
		return ""
	}
	return t.cfg.Key(value)
}

// Encode returns value as a payload of the current version. The error wraps [ErrInvalid] if value
// is not valid.
func (t *Type[T]) Encode(value T) ([]byte, error) {
	if err := t.check(value); err != nil {
		return nil, err
	}
	payload, err := t.cfg.Codec.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.cfg.Name, err)
	}
	return payload, nil
}

// Decode reads a payload with its version and content type; 0 and "" mean unknown. Errors wrap
// [ErrNewer] or [ErrUnreadable]. An error for a decoded but invalid value also wraps [ErrInvalid].
func (t *Type[T]) Decode(payload []byte, version int, contentType string) (T, error) {
	var value T
	if version == 0 {
		version = t.cfg.Unversioned
	}
	if version > t.cfg.Version {
		return value, fmt.Errorf("%s, version %d: %w (up to %d)", t.cfg.Name, version, ErrNewer, t.cfg.Version)
	}
	if err := t.decode(&value, payload, version, contentType); err != nil {
		var zero T
		return zero, fmt.Errorf("%s, version %d: %w: %w", t.cfg.Name, version, ErrUnreadable, err)
	}
	return value, nil
}

func (t *Type[T]) decode(value *T, payload []byte, version int, contentType string) error {
	codec, err := t.codec(contentType)
	if err != nil {
		return err
	}
	if version < t.oldest {
		return fmt.Errorf("no upcaster for version %d", version)
	}
	for ; version < t.cfg.Version; version++ {
		if payload, err = t.cfg.Upcast[version](codec, payload); err != nil {
			return fmt.Errorf("upcast version %d: %w", version, err)
		}
	}
	if err := codec.Unmarshal(payload, value); err != nil {
		return err
	}
	return t.check(*value)
}

func (t *Type[T]) codec(contentType string) (Codec, error) {
	if contentType == "" {
		return t.cfg.Codec, nil
	}
	for _, codec := range t.codecs {
		if sameMedia(codec.ContentType(), contentType) {
			return codec, nil
		}
	}
	return nil, fmt.Errorf("content type is not %s", t.cfg.Codec.ContentType())
}

func (t *Type[T]) check(value T) error {
	if t.cfg.Validate == nil {
		return nil
	}
	if err := t.cfg.Validate(value); err != nil {
		return fmt.Errorf("%s: %w: %w", t.cfg.Name, ErrInvalid, err)
	}
	return nil
}
