package idgen

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/quick"

	"github.com/google/uuid"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// encode is a second implementation of the format in the package comment.
func encode(parts ...string) string {
	var name strings.Builder
	for _, part := range parts {
		fmt.Fprintf(&name, "%d:%s,", len(part), part)
	}
	return name.String()
}

// decode reads the output of encode: since a decoder exists, different lists have different
// encodings.
func decode(name string) ([]string, error) {
	var parts []string
	for name != "" {
		digits, rest, ok := strings.Cut(name, ":")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n < 0 || strconv.Itoa(n) != digits || len(rest) <= n || rest[n] != ',' {
			return nil, fmt.Errorf("no netstring at %q", name)
		}
		parts = append(parts, rest[:n])
		name = rest[n+1:]
	}
	return parts, nil
}

// viaUUID computes an ID with google/uuid and encode.
func viaUUID(parts ...string) uuid.UUID {
	return uuid.NewSHA1(Namespace, []byte(encode(parts...)))
}

func TestNamespaceIsTheStatedOne(t *testing.T) {
	t.Parallel()
	if want := uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/boxpair/boxpair/dispatch/v1")); Namespace != want {
		t.Errorf("namespace %v, want %v", Namespace, want)
	}
}

func TestIDsAreUUIDv5OfTheStatedName(t *testing.T) {
	t.Parallel()
	of := func(producer, source string, version int64, index int) bool {
		want := viaUUID("of", producer, source, strconv.FormatInt(version, 10), strconv.Itoa(index))
		return Of(producer, source, version, index) == want
	}
	key := func(producer, source, idempotencyKey string, index int) bool {
		return OfKey(producer, source, idempotencyKey, index) == viaUUID("key", producer, source, idempotencyKey, strconv.Itoa(index))
	}
	child := func(consumer string, cause uuid.UUID, index int) bool {
		return Child(consumer, cause, index) == viaUUID("child", consumer, cause.String(), strconv.Itoa(index))
	}
	for _, property := range []any{of, key, child} {
		if err := quick.Check(property, &quick.Config{MaxCount: 2000}); err != nil {
			t.Error(err)
		}
	}
}

// The encoded name and the hashed bytes have stack buffers; an ID must not depend on whether the
// buffers suffice.
func TestIDsDoNotDependOnTheLengthOfTheName(t *testing.T) {
	t.Parallel()
	for n := range 3 * nameSize {
		source := strings.Repeat("x", n)
		if got, want := Of("p", source, 1, 0), viaUUID("of", "p", source, "1", "0"); got != want {
			t.Errorf("source of %d bytes: %v, want %v", n, got, want)
		}
	}
}

func TestIDsHaveVersionAndVariant(t *testing.T) {
	t.Parallel()
	for i := range 1000 {
		if id := Of("p", "s", int64(i), 0); id.Version() != 5 || id.Variant() != uuid.RFC4122 {
			t.Fatalf("%v: version %v, variant %v", id, id.Version(), id.Variant())
		}
	}
}

func TestIDsThatLookAlikeDiffer(t *testing.T) {
	t.Parallel()
	cause := Of("p", "s", 1, 0)
	ids := map[string]uuid.UUID{
		"plain":                       Of("p", "s", 1, 0),
		"producer and source swapped": Of("s", "p", 1, 0),
		"boundary moved left":         Of("", "ps", 1, 0),
		"boundary moved right":        Of("ps", "", 1, 0),
		"all empty":                   Of("", "", 0, 0),
		"version and index swapped":   Of("p", "s", 0, 1),
		"negative version":            Of("p", "s", -1, 0),
		"smallest version":            Of("p", "s", math.MinInt64, 0),
		"largest version":             Of("p", "s", math.MaxInt64, 0),
		"digits of version in source": Of("p", "s1", 1, 0),
		"netstring in source":         Of("p", "1:s,1:1,", 1, 0),
		"comma":                       Of("p", ",", 1, 0),
		"colon":                       Of("p", ":", 1, 0),
		"key that is a version":       OfKey("p", "s", "1", 0),
		"empty key":                   OfKey("p", "s", "", 0),
		"another producer":            Of("q", "s", 1, 0),
		"comma before the boundary":   OfKey("a,b", "c", "d", 0),
		"comma behind the boundary":   OfKey("a", "b,c", "d", 0),
		"child":                       Child("p", cause, 0),
		"next child":                  Child("p", cause, 1),
		"child of nil":                Child("p", uuid.Nil, 0),
		"child's name as key":         OfKey("p", cause.String(), "0", 0),
		"composed":                    Of("p", "\u00e9", 1, 0),
		"decomposed":                  Of("p", "e\u0301", 1, 0),
		"NUL":                         Of("p", "s\x00", 1, 0),
		"not UTF-8":                   Of("p", "\xff", 1, 0),
		"replacement character":       Of("p", "\ufffd", 1, 0),
		"upper case":                  Of("P", "S", 1, 0),
	}
	seen := make(map[uuid.UUID]string)
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		id := ids[name]
		if name == "plain" && id != cause {
			t.Error("equal input gave another ID")
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s have one ID", name, other)
		}
		seen[id] = name
	}
}

func TestEventsOfAKeyShareAShardWhateverTheirIDs(t *testing.T) {
	t.Parallel()
	want := Shard("order-42", uuid.Nil)
	for i := range 100 {
		if got := Shard("order-42", Of("p", "s", int64(i), 0)); got != want {
			t.Fatalf("shard %d, want %d", got, want)
		}
	}
}

func TestShardsAreUsedEvenly(t *testing.T) {
	t.Parallel()
	const each = 1000
	var byKey, byID [Shards]int
	for i := range each * Shards {
		id := Of("p", "s", int64(i), 0)
		byKey[Shard("key-"+strconv.Itoa(i), id)]++
		byID[Shard("", id)]++
	}
	for shard := range Shards {
		for _, n := range []int{byKey[shard], byID[shard]} {
			if n < each*8/10 || n > each*12/10 {
				t.Errorf("shard %d has %d events, want about %d", shard, n, each)
			}
		}
	}
}

// Not parallel: allocations are counted process-wide.
func TestOrdinaryNamesAllocateNothing(t *testing.T) {
	id := Of("orders", "order-42", 1, 0)
	for name, f := range map[string]func(){
		"Of":    func() { Of("orders", "order/0a7c6d52-7d0e-4c5e-9a39-6dd1a9f4b3a1", math.MaxInt64, 12) },
		"OfKey": func() { OfKey("orders", "checkout", "0a7c6d52-7d0e-4c5e-9a39-6dd1a9f4b3a1", 0) },
		"Child": func() { Child("inventory.reserve", id, 3) },
		"Shard": func() { Shard("order/0a7c6d52-7d0e-4c5e-9a39-6dd1a9f4b3a1", id) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// FuzzInjective cuts a text into parts twice, at any places. The two lists of parts must have equal
// encodings and IDs only if the lists are equal.
func FuzzInjective(f *testing.F) {
	f.Add("ps", []byte{1}, []byte{0, 2})
	f.Add("1:s,1:1,", []byte{0}, []byte{4})
	f.Add("0:,0:,", []byte{}, []byte{3, 3})
	f.Add("\xff\x00é,:", []byte{1, 1, 1}, []byte{2})
	f.Fuzz(func(t *testing.T, text string, cuts, otherCuts []byte) {
		one, two := split(text, cuts), split(text, otherCuts)
		nameOne, nameTwo := encodeParts(one), encodeParts(two)
		for name, parts := range map[string][]string{nameOne: one, nameTwo: two} {
			back, err := decode(name)
			if err != nil || !slices.Equal(back, parts) {
				t.Fatalf("%q decodes to %q, %v; want %q", name, back, err, parts)
			}
			if name != encode(parts...) {
				t.Fatalf("%q is encoded as %q", parts, name)
			}
		}
		if same := slices.Equal(one, two); (nameOne == nameTwo) != same || (newV5([]byte(nameOne)) == newV5([]byte(nameTwo))) != same {
			t.Fatalf("%q and %q: names %q and %q", one, two, nameOne, nameTwo)
		}
	})
}

// split cuts text into len(cuts)+1 parts of the given lengths; the last part is the rest.
func split(text string, cuts []byte) []string {
	parts := make([]string, 0, len(cuts)+1)
	for _, cut := range cuts {
		n := min(int(cut), len(text))
		parts, text = append(parts, text[:n]), text[n:]
	}
	return append(parts, text)
}

// encodeParts encodes parts with the functions of the package.
func encodeParts(parts []string) string {
	var name []byte
	for i, part := range parts {
		if i%2 == 0 {
			name = appendString(name, part)
		} else {
			name = appendBytes(name, []byte(part))
		}
	}
	return string(name)
}

// FuzzIDs compares every kind with google/uuid over the documented format.
func FuzzIDs(f *testing.F) {
	f.Add("orders", "order-42", "", int64(3), 0)
	f.Add("", "", "", int64(math.MinInt64), math.MinInt)
	f.Add(strings.Repeat("long", 100), "\xff", "1:0,", int64(math.MaxInt64), math.MaxInt)
	f.Fuzz(func(t *testing.T, name, source, key string, version int64, index int) {
		v, i := strconv.FormatInt(version, 10), strconv.Itoa(index)
		cause := Of(name, source, version, index)
		if want := viaUUID("of", name, source, v, i); cause != want {
			t.Errorf("Of: %v, want %v", cause, want)
		}
		if got, want := OfKey(name, source, key, index), viaUUID("key", name, source, key, i); got != want {
			t.Errorf("OfKey: %v, want %v", got, want)
		}
		if got, want := Child(name, cause, index), viaUUID("child", name, cause.String(), i); got != want {
			t.Errorf("Child: %v, want %v", got, want)
		}
		if shard := Shard(key, cause); shard < 0 || shard >= Shards {
			t.Errorf("shard %d", shard)
		}
	})
}

func BenchmarkOf(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Of("orders", "order/0a7c6d52-7d0e-4c5e-9a39-6dd1a9f4b3a1", 42, 0)
	}
}

// BenchmarkOfByUUID computes the ID of BenchmarkOf with google/uuid and fmt, for comparison.
func BenchmarkOfByUUID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		viaUUID("of", "orders", "order/0a7c6d52-7d0e-4c5e-9a39-6dd1a9f4b3a1", "42", "0")
	}
}

func BenchmarkOfLongSource(b *testing.B) {
	source := strings.Repeat("x", 1000)
	b.ReportAllocs()
	for b.Loop() {
		Of("orders", source, 42, 0)
	}
}

func BenchmarkOfKey(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		OfKey("orders", "checkout", "0a7c6d52-7d0e-4c5e-9a39-6dd1a9f4b3a1", 0)
	}
}

func BenchmarkChild(b *testing.B) {
	cause := Of("orders", "order-42", 1, 0)
	b.ReportAllocs()
	for b.Loop() {
		Child("inventory.reserve", cause, 0)
	}
}

func BenchmarkShard(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Shard("order/0a7c6d52-7d0e-4c5e-9a39-6dd1a9f4b3a1", uuid.Nil)
	}
}
