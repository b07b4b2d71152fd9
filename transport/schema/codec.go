package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
)

// Codec encodes values and decodes them. Its methods are safe for concurrent use, and their errors
// contain no values.
type Codec interface {
	// ContentType is the media type of encoded values.
	ContentType() string
	// Marshal encodes v. Equal values must give equal bytes.
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes data into v, a non-nil pointer.
	Unmarshal(data []byte, v any) error
}

// JSON is the codec of encoding/json. Decoding skips unknown fields, so that producers may add
// fields.
type JSON struct{}

// ContentType returns "application/json".
func (JSON) ContentType() string { return "application/json" }

// Marshal encodes v.
func (JSON) Marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T as JSON: %w", v, describe(err))
	}
	return data, nil
}

// Unmarshal decodes data.
func (JSON) Unmarshal(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode JSON into %T: %w", v, describe(err))
	}
	return nil
}

// describe explains an error of encoding/json without its text, which quotes values.
func describe(err error) error {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
		value  *json.UnsupportedValueError
		typ    *json.UnsupportedTypeError
	)
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("syntax error at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("field %q at byte %d cannot be a %s", kind.Field, kind.Offset, kind.Type)
	case errors.As(err, &value):
		return errors.New("unsupported value")
	case errors.As(err, &typ):
		return fmt.Errorf("unsupported type %s", typ.Type)
	}
	return errors.New("a JSON method of a type failed")
}

// sameMedia tells whether two content types name the same media type; parameters do not count.
func sameMedia(a, b string) bool {
	return media(a) == media(b)
}

func media(contentType string) string {
	name, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType
	}
	return name
}
