package transport_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/internal/sample"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFullEventHasEveryFieldSet(t *testing.T) {
	t.Parallel()
	v := reflect.ValueOf(sample.Event())
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not set, so no test covers it", v.Type().Field(i).Name)
		}
	}
}

func TestEventSurvivesTheWire(t *testing.T) {
	t.Parallel()
	sent := sample.Event()
	for name, e := range map[string]transport.Event{
		"full":          sent,
		"only an ID":    {ID: sent.ID, Topic: "t"},
		"first version": {ID: sent.ID, Topic: "t", Source: "s"},
		"extremes":      {ID: sent.ID, Topic: "t", Source: "s", Version: math.MinInt64, Index: math.MaxInt, SchemaVersion: -1},
		"last stamp":    {ID: sent.ID, Topic: "t", Stamp: time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)},
	} {
		got, err := transport.Parse(e.Topic, e.Message())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, e) {
			t.Errorf("%s: got %+v, want %+v", name, got, e)
		}
	}
}

func TestStampIsOneInstantWhateverItsZone(t *testing.T) {
	t.Parallel()
	e := sample.Event()
	want := e.Message().Metadata.Get(transport.MetaStamp)
	e.Stamp = e.Stamp.In(time.FixedZone("Auckland", 13*3600))
	if got := e.Message().Metadata.Get(transport.MetaStamp); got != want || got != "2026-11-20T10:30:00.123456789Z" {
		t.Errorf("stamp %q, want %q", got, want)
	}
	msg := e.Message()
	msg.Metadata.Set(transport.MetaStamp, "2026-11-20T23:30:00.123456789+13:00")
	got, err := transport.Parse(e.Topic, msg)
	if err != nil || got.Stamp != e.Stamp.UTC() {
		t.Errorf("stamp %v, %v; want %v", got.Stamp, err, e.Stamp.UTC())
	}
}

func TestMessageLeavesOutWhatTheEventDoesNotSay(t *testing.T) {
	t.Parallel()
	e := transport.Event{ID: sample.Event().ID, Headers: map[string]string{"tenant": "acme"}}
	if msg := e.Message(); !maps.Equal(msg.Metadata, message.Metadata{"tenant": "acme"}) {
		t.Errorf("metadata %v", msg.Metadata)
	}
}

func TestHeadersAreNotSharedWithTheMessage(t *testing.T) {
	t.Parallel()
	e := sample.Event()
	e.Message().Metadata.Set("tenant", "other")
	if e.Headers["tenant"] != "acme" {
		t.Error("a change of the message changes the event")
	}
}

func TestMessageOfAPublisherThatKnowsNothingOfUsIsRead(t *testing.T) {
	t.Parallel()
	id := uuid.NewString()
	msg := message.NewMessage(id, []byte("payload"))
	msg.Metadata.Set("name", "OrderPlaced")
	msg.Metadata.Set("correlation_id", "request-1")
	e, err := transport.Parse("orders", msg)
	if err != nil {
		t.Fatal(err)
	}
	want := transport.Event{
		ID: uuid.MustParse(id), Topic: "orders", Payload: []byte("payload"),
		Headers: map[string]string{"name": "OrderPlaced"}, CorrelationID: "request-1",
	}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("got %+v, want %+v", e, want)
	}
}

func TestMetadataOfALaterContractIsNoHeader(t *testing.T) {
	t.Parallel()
	e := sample.Event()
	msg := e.Message()
	msg.Metadata.Set(transport.ReservedPrefix+"later", "value")
	got, err := transport.Parse(e.Topic, msg)
	if err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestOnlyTheTextFormOfAUUIDIsADispatchID(t *testing.T) {
	t.Parallel()
	const id = "7b2abb5f-1692-59f9-97e7-278eeaec6b30"
	for _, text := range []string{
		"", "1", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "{" + id + "}", "urn:uuid:" + id,
		strings.ReplaceAll(id, "-", ""), id + " ", uuid.Nil.String(), strings.Replace(id, "7", "g", 1),
	} {
		e, err := transport.Parse("orders", message.NewMessage(text, nil))
		if !errors.Is(err, transport.ErrNotDispatchID) || e.ID != uuid.Nil {
			t.Errorf("%q: ID %v, error %v", text, e.ID, err)
		}
	}
	for _, text := range []string{id, strings.ToUpper(id)} {
		if e, err := transport.Parse("orders", message.NewMessage(text, nil)); err != nil || e.ID.String() != id {
			t.Errorf("%q: ID %v, error %v", text, e.ID, err)
		}
	}
}

func TestUnreadableMetadataIsNamedAndStaysZero(t *testing.T) {
	t.Parallel()
	secret := "s3cret"
	for name, values := range map[string][]string{
		transport.MetaVersion:       {"", secret, "1.5", "9223372036854775808", "-9223372036854775809"},
		transport.MetaIndex:         {"", secret, "99999999999999999999"},
		transport.MetaSchemaVersion: {"", secret, "-99999999999999999999"},
		transport.MetaDigest:        {"", secret, strings.Repeat("0", 31), strings.Repeat("g", 32), strings.Repeat("0", 33)},
		transport.MetaResendUntil:   {"", secret, "tomorrow"},
		transport.MetaEnvelope:      {"", secret},
		transport.MetaStamp:         {"", secret, "2026-11-20", "10000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00"},
	} {
		for _, value := range values {
			e := sample.Event()
			msg := e.Message()
			msg.Metadata.Set(name, value)
			got, err := transport.Parse(e.Topic, msg)
			if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), secret) {
				t.Errorf("%s %q: error %v", name, value, err)
			}
			want := e
			switch name {
			case transport.MetaVersion:
				want.Version = 0
			case transport.MetaIndex:
				want.Index = 0
			case transport.MetaSchemaVersion:
				want.SchemaVersion = 0
			case transport.MetaDigest:
				want.Digest = transport.Digest{}
			case transport.MetaStamp:
				want.Stamp = time.Time{}
			case transport.MetaResendUntil:
				want.ResendUntil = time.Time{}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s %q: got %+v, want %+v", name, value, got, want)
			}
		}
	}
}

func TestParseReportsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("no", nil)
	msg.Metadata.Set(transport.MetaVersion, "x")
	msg.Metadata.Set(transport.MetaStamp, "x")
	_, err := transport.Parse("orders", msg)
	if !errors.Is(err, transport.ErrNotDispatchID) {
		t.Errorf("error %v does not wrap ErrNotDispatchID", err)
	}
	for _, name := range []string{transport.MetaVersion, transport.MetaStamp} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not name %s", err, name)
		}
	}
}

func TestReservedNamesAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	e := sample.Event()
	e.Headers = nil
	for name := range e.Message().Metadata {
		if !transport.IsReserved(name) {
			t.Errorf("%s is written by the contract and not reserved", name)
		}
	}
	for _, name := range []string{"boxpair-", "boxpair-later", "_watermill_requeue_key", "correlation_id", "traceparent", "tracestate"} {
		if !transport.IsReserved(name) {
			t.Errorf("%s is not reserved", name)
		}
	}
	for _, name := range []string{"", "tenant", "boxpair", "x-boxpair-key", "ce-type", "name"} {
		if transport.IsReserved(name) {
			t.Errorf("%s is reserved", name)
		}
	}
}

func TestRedeliveredComesFromTheContextOnly(t *testing.T) {
	t.Parallel()
	e := sample.Event()
	msg := e.Message()
	msg.Metadata.Set("boxpair-redelivered", "true")
	msg.Metadata.Set("redelivered", "true")
	if transport.Redelivered(msg) {
		t.Error("metadata is believed")
	}
	ctx, cancel := context.WithCancel(transport.WithRedelivered(context.Background()))
	defer cancel()
	msg.SetContext(ctx)
	if !transport.Redelivered(msg) {
		t.Error("a derived context lost it")
	}
}

func TestOrderingKeyIsWhatTheSubscriberSays(t *testing.T) {
	t.Parallel()
	if key, ok := transport.OrderingKey(t.Context()); ok || key != "" {
		t.Errorf("nobody has said anything: %q, %v", key, ok)
	}
	for _, want := range []string{"order-42", ""} {
		ctx, cancel := context.WithCancel(transport.WithOrderingKey(t.Context(), want))
		defer cancel()
		if key, ok := transport.OrderingKey(ctx); !ok || key != want {
			t.Errorf("got %q, %v, want %q", key, ok, want)
		}
	}
}

func TestOutcomesHaveNames(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[transport.Outcome]string{
		transport.Unavailable: "unavailable", transport.Confirmed: "confirmed", transport.Returned: "returned",
		transport.Refused: "refused", transport.Invalid: "invalid", 200: "outcome(200)",
	} {
		if got := outcome.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if (transport.Result{}).Outcome == transport.Confirmed {
		t.Error("the zero value confirms")
	}
}

func TestDigestSurvivesTheWire(t *testing.T) {
	t.Parallel()
	property := func(topic, key, typ, contentType string, schema int, payload []byte, headers map[string]string) bool {
		e := transport.Event{
			ID: sample.Event().ID, Topic: topic, Key: key, Type: typ, ContentType: contentType,
			SchemaVersion: schema, Payload: payload, Headers: headers,
		}
		maps.DeleteFunc(e.Headers, func(name, _ string) bool { return transport.IsReserved(name) })
		e.Digest = transport.ContentDigest(&e)
		got, err := transport.Parse(topic, e.Message())
		return err == nil && got.Digest == e.Digest && transport.ContentDigest(&got) == e.Digest
	}
	if err := quick.Check(property, &quick.Config{MaxCount: 500}); err != nil {
		t.Error(err)
	}
}
