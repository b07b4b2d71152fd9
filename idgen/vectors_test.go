package idgen

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
)

//go:generate go test -run TestVectorsAreWhatThisPackageComputes -update .

var update = flag.Bool("update", false, "rewrite testdata/vectors.json; only for new vectors, values never change")

const vectorsFile = "testdata/vectors.json"

// vectors is the content of the file.
type vectors struct {
	About     []string      `json:"about"`
	Format    int           `json:"format"`
	Namespace uuid.UUID     `json:"namespace"`
	Shards    int           `json:"shards"`
	IDs       []idVector    `json:"ids"`
	Keys      []shardVector `json:"keys"`
}

// idVector is a dispatch ID with its input. Parts and Name are set only if Text is true.
type idVector struct {
	Case     string    `json:"case"`
	Kind     string    `json:"kind"`
	Text     bool      `json:"text"`
	Parts    []string  `json:"parts,omitempty"`
	PartsHex []string  `json:"parts_hex"`
	Name     string    `json:"name,omitempty"`
	NameHex  string    `json:"name_hex"`
	ID       uuid.UUID `json:"id"`
	Shard    int       `json:"shard_without_key"`
}

// shardVector is a key and its shard.
type shardVector struct {
	Case   string `json:"case"`
	Text   bool   `json:"text"`
	Key    string `json:"key,omitempty"`
	KeyHex string `json:"key_hex"`
	Shard  int    `json:"shard"`
}

var aboutVectors = []string{
	"Test vectors for dispatch IDs and shards of github.com/boxpair/boxpair, format 1.",
	"name = netstring(kind) and netstring(part) for each part; netstring(s) = <bytes of s, decimal> \":\" <s> \",\"",
	"id = UUIDv5(namespace, name)",
	"parts of kind of: producer, source, version, index; key: producer, source, idempotency key, index; child: consumer, cause, index",
	"shard of a key = first byte of SHA-256(key) mod shards; shard_without_key = last byte of id mod shards",
	"Everything is given in hexadecimal. With text = true it is UTF-8 without NUL and is given as text too, so it can be tried in PostgreSQL: uuid_generate_v5(namespace, name).",
}

// isText tells whether PostgreSQL can hold s as a text.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func newIDVector(what, kind string, id uuid.UUID, parts ...string) idVector {
	name := encode(append([]string{kind}, parts...)...)
	v := idVector{Case: what, Kind: kind, Text: isText(name), NameHex: hex.EncodeToString([]byte(name)), ID: id, Shard: Shard("", id)}
	for _, part := range parts {
		v.PartsHex = append(v.PartsHex, hex.EncodeToString([]byte(part)))
	}
	if v.Text {
		v.Parts, v.Name = parts, name
	}
	return v
}

func newShardVector(what, key string) shardVector {
	v := shardVector{Case: what, Text: isText(key), KeyHex: hex.EncodeToString([]byte(key)), Shard: Shard(key, uuid.Nil)}
	if v.Text {
		v.Key = key
	}
	return v
}

// computeVectors returns the vectors with the values computed by this package.
func computeVectors() vectors {
	v := vectors{About: aboutVectors, Format: 1, Namespace: Namespace, Shards: Shards}
	of := func(what, producer, source string, version int64, index int) {
		v.IDs = append(v.IDs, newIDVector(what, kindOf, Of(producer, source, version, index),
			producer, source, strconv.FormatInt(version, 10), strconv.Itoa(index)))
	}
	key := func(what, producer, source, idempotencyKey string, index int) {
		v.IDs = append(v.IDs, newIDVector(what, kindKey, OfKey(producer, source, idempotencyKey, index),
			producer, source, idempotencyKey, strconv.Itoa(index)))
	}
	child := func(what, consumer string, cause uuid.UUID, index int) {
		v.IDs = append(v.IDs, newIDVector(what, kindChild, Child(consumer, cause, index),
			consumer, cause.String(), strconv.Itoa(index)))
	}
	of("plain", "orders", "order-42", 3, 0)
	of("another producer, same source", "billing", "order-42", 3, 0)
	of("second event of the version", "orders", "order-42", 3, 1)
	of("empty parts", "", "", 0, 0)
	of("one boundary", "ab", "c", 0, 0)
	of("the boundary elsewhere", "a", "bc", 0, 0)
	of("separators in parts", "a:b", "c,d", 1, 0)
	of("a netstring in a part", "orders", "8:order-42,1:3,1:0,", 3, 0)
	of("digits in parts", "1", "23", 4, 5)
	of("negative version", "orders", "order-42", -1, 0)
	of("smallest version", "orders", "order-42", math.MinInt64, 0)
	of("largest version", "orders", "order-42", math.MaxInt64, 0)
	of("large index", "orders", "order-42", 3, math.MaxInt32)
	of("white space counts", " orders", "order-42\n", 3, 0)
	of("accent, composed", "caf\u00e9", "\u00e9", 1, 0)
	of("accent, decomposed", "cafe\u0301", "e\u0301", 1, 0)
	of("four bytes of UTF-8 a character", "\U0001F4E6", "\U0001F4EC-1", 1, 0)
	of("quotes and backslashes", `"'\`, "<&>\u2028", 1, 0)
	of("255 bytes", "orders", strings.Repeat("x", 255), 1, 0)
	of("256 bytes", "orders", strings.Repeat("x", 256), 1, 0)
	of("1000 bytes", "orders", strings.Repeat("0123456789", 100), 1, 0)
	of("NUL", "orders", "a\x00b", 1, 0)
	of("bytes that are not UTF-8", "\xff\xfe", "\xc3\x28", 1, 0)
	key("plain", "orders", "checkout", "7b0e7f3e-54c5-4c8b-8a55-9f0f8e8f1c11", 0)
	key("empty key", "orders", "checkout", "", 0)
	key("key like a version", "orders", "order-42", "3", 0)
	key("separators in parts", ":", ",", "0:,", 2)
	key("bytes that are not UTF-8", "orders", "checkout", "\x80", 0)
	key("long key", "orders", "checkout", strings.Repeat("\u00e9", 200), 0)
	cause := Of("orders", "order-42", 3, 0)
	child("plain", "inventory.reserve", cause, 0)
	child("second event", "inventory.reserve", cause, 1)
	child("child of a child", "payments.capture", Child("inventory.reserve", cause, 0), 0)
	child("nil cause", "inventory.reserve", uuid.Nil, 0)
	child("hexadecimal is lower case", "inventory.reserve", uuid.MustParse("ABCDEFAB-CDEF-5ABC-9EFA-BCDEFABCDEFA"), 0)
	child("empty consumer", "", cause, 0)
	for _, k := range [][2]string{
		{"plain", "order-42"},
		{"next", "order-43"},
		{"one byte", "a"},
		{"separators", "a:b,c"},
		{"accent", "caf\u00e9"},
		{"four bytes of UTF-8 a character", "\U0001F4E6"},
		{"1000 bytes", strings.Repeat("0123456789", 100)},
		{"NUL", "a\x00b"},
		{"bytes that are not UTF-8", "\xff"},
	} {
		v.Keys = append(v.Keys, newShardVector(k[0], k[1]))
	}
	return v
}

// The file is written once and compared for ever: unless a vector is new, a difference means a
// broken format.
func TestVectorsAreWhatThisPackageComputes(t *testing.T) {
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(computeVectors()); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(vectorsFile, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s differs from what this package computes", vectorsFile)
	}
}

// A reader in another language has only the file: all values must follow from parts_hex and the
// rules in "about".
func TestVectorsAgreeWithThemselves(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file vectors
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, v := range file.IDs {
		parts := []string{v.Kind}
		for i, h := range v.PartsHex {
			part := unhex(t, h)
			if v.Text && part != v.Parts[i] {
				t.Errorf("%s, %s: part %d is %q and %q", v.Kind, v.Case, i, v.Parts[i], part)
			}
			parts = append(parts, part)
		}
		name := encode(parts...)
		if name != unhex(t, v.NameHex) || v.Text && name != v.Name || v.Text != isText(name) {
			t.Errorf("%s, %s: name does not follow from parts", v.Kind, v.Case)
		}
		if id := uuid.NewSHA1(file.Namespace, []byte(name)); id != v.ID || int(id[15])%file.Shards != v.Shard {
			t.Errorf("%s, %s: ID does not follow from name", v.Kind, v.Case)
		}
	}
	for _, v := range file.Keys {
		key := unhex(t, v.KeyHex)
		if v.Text != isText(key) || v.Text && key != v.Key {
			t.Errorf("key %s: text and bytes differ", v.Case)
		}
	}
}

func unhex(t *testing.T, s string) string {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// These values are written by hand beside the file, so that an accidental rewrite of the file is
// seen.
func TestFormatOneNeverChanges(t *testing.T) {
	t.Parallel()
	cause := Of("orders", "order-42", 3, 0)
	for got, want := range map[string]string{
		cause.String(): "7b2abb5f-1692-59f9-97e7-278eeaec6b30",
		OfKey("orders", "checkout", "7b0e7f3e-54c5-4c8b-8a55-9f0f8e8f1c11", 0).String(): "05724ceb-2ae9-5a17-bf93-c2e9cc58b32f",
		Child("inventory.reserve", cause, 0).String():                                   "0bfa0e22-39db-5aee-94e4-829026a7bc58",
		strconv.Itoa(Shard("order-42", uuid.Nil)):                                       "59",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
