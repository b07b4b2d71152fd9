package sqlstore

import (
	"maps"
	"testing"
)

// FuzzMetadata: metadata comes back as it was, whatever it holds.
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

// FuzzDecodeMetadata: a row that was changed by hand is an error, no panic, and takes no more
// memory than it has bytes.
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
