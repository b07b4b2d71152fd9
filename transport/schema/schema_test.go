package schema_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/transport/schema"
)

type orderV1 struct {
	Order string `json:"order"`
	Name  string `json:"name"`
}

type orderV2 struct {
	Order string   `json:"order"`
	Names []string `json:"names"`
}

type order struct {
	Order string   `json:"order"`
	Names []string `json:"names"`
	Cents int64    `json:"cents"`
}

func newOrder(t testing.TB) *schema.Type[order] {
	t.Helper()
	typ, err := schema.New(schema.Config[order]{
		Name: "order.placed", Version: 3, Unversioned: 1,
		Key: func(o order) string { return o.Order },
		Validate: func(o order) error {
			if o.Order == "" {
				return errors.New("order is missing")
			}
			return nil
		},
		Upcast: map[int]schema.Upcaster{
			1: schema.Up(func(o orderV1) (orderV2, error) { return orderV2{o.Order, strings.Fields(o.Name)}, nil }),
			2: schema.Up(func(o orderV2) (order, error) { return order{Order: o.Order, Names: o.Names, Cents: 100}, nil }),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

func TestValueComesBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	typ := newOrder(t)
	want := order{Order: "42", Names: []string{"lamp"}, Cents: 5}
	payload, err := typ.Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := typ.Decode(payload, typ.Version(), typ.ContentType())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if typ.Topic() != "order.placed" || typ.Key(want) != "42" {
		t.Errorf("topic %q, key %q", typ.Topic(), typ.Key(want))
	}
}

func TestEarlierVersionsAreTakenThroughEveryUpcaster(t *testing.T) {
	t.Parallel()
	typ := newOrder(t)
	want := order{Order: "42", Names: []string{"red", "lamp"}, Cents: 100}
	for name, old := range map[string]struct {
		version int
		payload string
	}{
		"the first":       {1, `{"order":"42","name":"red lamp"}`},
		"one that is not": {0, `{"order":"42","name":"red lamp"}`},
		"the second":      {2, `{"order":"42","names":["red","lamp"]}`},
	} {
		got, err := typ.Decode([]byte(old.payload), old.version, "application/json; charset=utf-8")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestWhatCannotBeReadIsToldFromWhatIsNotYetKnown(t *testing.T) {
	t.Parallel()
	typ := newOrder(t)
	const secret = "4111111111111111"
	for name, c := range map[string]struct {
		payload     string
		version     int
		contentType string
		want        error
	}{
		"a later version":        {`{}`, 4, "", schema.ErrNewer},
		"another content type":   {`{"order":"42"}`, 3, "text/xml", schema.ErrUnreadable},
		"no JSON":                {`{"order":` + secret, 3, "", schema.ErrUnreadable},
		"another kind of value":  {`{"order":"1","cents":"` + secret + `"}`, 3, "", schema.ErrUnreadable},
		"no JSON of a version 1": {secret + `}`, 1, "", schema.ErrUnreadable},
		"an invalid value":       {`{"cents":` + secret + `}`, 3, "", schema.ErrInvalid},
		"a negative version":     {`{"order":"42"}`, -1, "", schema.ErrUnreadable},
	} {
		got, err := typ.Decode([]byte(c.payload), c.version, c.contentType)
		if !errors.Is(err, c.want) || !reflect.DeepEqual(got, order{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if errors.Is(err, schema.ErrNewer) == errors.Is(err, schema.ErrUnreadable) {
			t.Errorf("%s: is both or neither: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error tells the payload: %v", name, err)
		}
	}
}

func TestInvalidValueIsNotWritten(t *testing.T) {
	t.Parallel()
	if _, err := newOrder(t).Encode(order{}); !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "order is missing") {
		t.Error(err)
	}
}

func TestValueWithoutAnEncodingIsRefusedWithoutIt(t *testing.T) {
	t.Parallel()
	typ, err := schema.New(schema.Config[map[string]any]{Name: "any"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := typ.Encode(map[string]any{"f": func() {}}); err == nil || !strings.Contains(err.Error(), "func()") {
		t.Error(err)
	}
}

func TestOtherEncodingsAreReadByTheirContentType(t *testing.T) {
	t.Parallel()
	typ, err := schema.New(schema.Config[string]{Name: "note", Reads: []schema.Codec{shout{}}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := typ.Decode([]byte("HELLO"), 1, "text/shout"); err != nil || got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := typ.Decode([]byte(`"hello"`), 1, ""); err != nil || got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestBadConfigurationIsRefusedWithAllOfItsProblems(t *testing.T) {
	t.Parallel()
	up := schema.Up(func(s string) (string, error) { return s, nil })
	for want, cfg := range map[string]schema.Config[string]{
		"Name: is required":            {},
		"Version: is less than 1":      {Name: "a", Version: -1},
		"without a gap":                {Name: "a", Version: 4, Upcast: map[int]schema.Upcaster{1: up, 3: up}},
		"not before Version 2":         {Name: "a", Version: 2, Upcast: map[int]schema.Upcaster{2: up}},
		"version 1 has no function":    {Name: "a", Version: 2, Upcast: map[int]schema.Upcaster{1: nil}},
		"Unversioned: version 1":       {Name: "a", Version: 2, Unversioned: 1},
		"two codecs for":               {Name: "a", Reads: []schema.Codec{schema.JSON{}}},
		"Reads: codec 0 is nil":        {Name: "a", Reads: []schema.Codec{nil}},
		"Unversioned: version 3":       {Name: "a", Version: 2, Unversioned: 3},
		"Upcast: version 0 is not bef": {Name: "a", Version: 2, Upcast: map[int]schema.Upcaster{0: up, 1: up}},
	} {
		if _, err := schema.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func FuzzDecodeNeitherPanicsNorReadsWhatIsInvalid(f *testing.F) {
	f.Add([]byte(`{"order":"42","name":"red lamp"}`), 1, "application/json")
	f.Add([]byte(`{"order":"","names":null}`), 2, "")
	f.Add([]byte(`{"order":"42","cents":1e99}`), 3, "application/json;")
	f.Add([]byte(`[]`), -5, "a/b; c")
	typ := newOrder(f)
	f.Fuzz(func(t *testing.T, payload []byte, version int, contentType string) {
		o, err := typ.Decode(payload, version, contentType)
		if err == nil && o.Order == "" {
			t.Error("an invalid value was read")
		}
		if err != nil && errors.Is(err, schema.ErrNewer) == errors.Is(err, schema.ErrUnreadable) {
			t.Errorf("unclassified: %v", err)
		}
	})
}

func Example() {
	placed, err := schema.New(schema.Config[orderV2]{
		Name:    "order.placed",
		Version: 2,
		Upcast: map[int]schema.Upcaster{
			1: schema.Up(func(old orderV1) (orderV2, error) {
				return orderV2{Order: old.Order, Names: strings.Fields(old.Name)}, nil
			}),
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	o, err := placed.Decode([]byte(`{"order":"42","name":"red lamp"}`), 1, "application/json")
	fmt.Println(o.Order, o.Names, err)
	_, err = placed.Decode([]byte(`{}`), 3, "application/json")
	fmt.Println(err)
	// Output:
	// 42 [red lamp] <nil>
	// order.placed, version 3: payload has a later schema version than this consumer knows (up to 2)
}

// shout is a codec of upper case.
type shout struct{}

func (shout) ContentType() string { return "text/shout" }

func (shout) Marshal(v any) ([]byte, error) { return []byte(strings.ToUpper(v.(string))), nil }

func (shout) Unmarshal(data []byte, v any) error {
	*v.(*string) = strings.ToLower(string(data))
	return nil
}
