package sqlstore

import (
	"maps"
	"testing"
)

// FuzzMetadata tests that any metadata comes back unchanged.
func FuzzMetadata(f *testing.F) {
	f.Add("name", "value", "", "empty name")
	f.Add("\xff", "\x00", "nul", "a\x00b")
	f.Fuzz(func(t *testing.T, name, value, other, otherValue string) {
		metadata := map[string]string{name: value, other: otherValue}
		back, err := decodeMetadata(encodeMetadata(metadata))
		if err != nil || !maps.Equal(back, metadata) {
			t.Errorf("%q comes back as %q, %v", metadata, back, err)
		}
	})
}

// FuzzDecodeMetadata tests that a row changed by hand gives an error, no panic, and needs no more
// memory than the row has bytes.
func FuzzDecodeMetadata(f *testing.F) {
	f.Add(encodeMetadata(map[string]string{"a": "b", "": "\x00"}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		metadata, err := decodeMetadata(b)
		size := 0
		for name, value := range metadata {
			size += len(name) + len(value)
		}
		if (metadata == nil) == (err == nil) || size > len(b) {
			t.Errorf("%q and %v", metadata, err)
		}
	})
}
