package transport_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/internal/sample"
)

// statedDigest is the digest as the documentation states it, written a second time.
func statedDigest(e *transport.Event) string {
	parts := []string{e.Topic, e.Key, e.Type, strconv.Itoa(e.SchemaVersion), e.ContentType, string(e.Payload)}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		parts = append(parts, name, e.Headers[name])
	}
	var content strings.Builder
	for _, part := range parts {
		fmt.Fprintf(&content, "%d:%s,", len(part), part)
	}
	sum := sha256.Sum256([]byte(content.String()))
	return hex.EncodeToString(sum[:16])
}

// Digests are stored for the retention of an outbox and the window of an inbox:
// these values never change.
func TestDigestsAreFixed(t *testing.T) {
	t.Parallel()
	full := sample.Event()
	manyHeaders := transport.Event{Topic: "t", Headers: map[string]string{}}
	for i := range 50 {
		manyHeaders.Headers[strconv.Itoa(i)] = strconv.Itoa(i * i)
	}
	for name, v := range map[string]struct {
		event transport.Event
		want  string
	}{
		"nothing":       {transport.Event{}, "0c89362d0b5995ef466e48990c07789d"},
		"full":          {full, "637904c5b9b08d2dc8bdc910726c2665"},
		"many headers":  {manyHeaders, "70329acf78a3258e94dd79c0523b3ee7"},
		"large payload": {transport.Event{Payload: bytes.Repeat([]byte{0, 255}, 1<<16)}, "6d1d6a45937aac9f0dbfb7e3c5622ade"},
	} {
		got := transport.ContentDigest(&v.event).String()
		if got != v.want || got != statedDigest(&v.event) {
			t.Errorf("%s: digest %s, want %s, by the documentation %s", name, got, v.want, statedDigest(&v.event))
		}
	}
}

func TestDigestDependsOnContentOnly(t *testing.T) {
	t.Parallel()
	e := sample.Event()
	want := transport.ContentDigest(&e)
	for name, change := range map[string]func(*transport.Event){
		"ID":             func(e *transport.Event) { e.ID[0]++ },
		"producer":       func(e *transport.Event) { e.Producer = "x" },
		"source":         func(e *transport.Event) { e.Source = "x" },
		"version":        func(e *transport.Event) { e.Version++ },
		"index":          func(e *transport.Event) { e.Index++ },
		"stamp":          func(e *transport.Event) { e.Stamp = time.Time{} },
		"correlation ID": func(e *transport.Event) { e.CorrelationID = "x" },
		"trace parent":   func(e *transport.Event) { e.TraceParent = "x" },
		"trace state":    func(e *transport.Event) { e.TraceState = "x" },
		"digest":         func(e *transport.Event) { e.Digest[0]++ },
	} {
		other := sample.Event()
		change(&other)
		if transport.ContentDigest(&other) != want {
			t.Errorf("%s changes the digest", name)
		}
	}
	seen := map[transport.Digest]string{want: "unchanged"}
	for name, change := range map[string]func(*transport.Event){
		"topic":                 func(e *transport.Event) { e.Topic = "x" },
		"key":                   func(e *transport.Event) { e.Key = "x" },
		"no key":                func(e *transport.Event) { e.Key = "" },
		"topic and key swapped": func(e *transport.Event) { e.Topic, e.Key = e.Key, e.Topic },
		"type":                  func(e *transport.Event) { e.Type = "x" },
		"schema version":        func(e *transport.Event) { e.SchemaVersion++ },
		"content type":          func(e *transport.Event) { e.ContentType = "x" },
		"payload":               func(e *transport.Event) { e.Payload = []byte("x") },
		"header value":          func(e *transport.Event) { e.Headers["tenant"] = "x" },
		"header name":           func(e *transport.Event) { e.Headers["tenant2"] = e.Headers["tenant"]; delete(e.Headers, "tenant") },
		"another header":        func(e *transport.Event) { e.Headers["x"] = "" },
		"no headers":            func(e *transport.Event) { e.Headers = nil },
	} {
		other := sample.Event()
		change(&other)
		d := transport.ContentDigest(&other)
		if also, ok := seen[d]; ok {
			t.Errorf("%s gives the digest of %s", name, also)
		}
		seen[d] = name
	}
}

func TestDigestDoesNotDependOnTheOrderOfHeaders(t *testing.T) {
	t.Parallel()
	names := []string{"c", "a", "b", "aa", ""}
	forward, backward := transport.Event{Headers: map[string]string{}}, transport.Event{Headers: map[string]string{}}
	for i, name := range names {
		forward.Headers[name] = name
		backward.Headers[names[len(names)-1-i]] = names[len(names)-1-i]
	}
	want := transport.ContentDigest(&forward)
	for range 100 { // maps are walked in another order every time
		if transport.ContentDigest(&backward) != want || transport.ContentDigest(&forward) != want {
			t.Fatal("digests differ")
		}
	}
}

func TestDigestsMatchWhenTheyAreEqualOrSayNothing(t *testing.T) {
	t.Parallel()
	var none transport.Digest
	one, two := transport.Digest{1}, transport.Digest{2}
	for _, v := range []struct {
		a, b transport.Digest
		want bool
	}{
		{one, one, true}, {one, two, false}, {one, none, true}, {none, one, true}, {none, none, true},
	} {
		if got := v.a.Matches(v.b); got != v.want {
			t.Errorf("%v matches %v: %v", v.a, v.b, got)
		}
	}
	if !none.IsZero() || one.IsZero() {
		t.Error("IsZero is wrong")
	}
}

func TestDigestSurvivesItsText(t *testing.T) {
	t.Parallel()
	e := sample.Event()
	want := transport.ContentDigest(&e)
	for _, text := range []string{want.String(), strings.ToUpper(want.String())} {
		var got transport.Digest
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	got := want
	if err := got.UnmarshalText([]byte("00")); err == nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
}

func BenchmarkContentDigest(b *testing.B) {
	e := sample.Event()
	b.ReportAllocs()
	for b.Loop() {
		transport.ContentDigest(&e)
	}
}
