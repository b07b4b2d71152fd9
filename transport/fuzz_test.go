package transport_test

import (
	"reflect"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/internal/sample"
)

// FuzzParse sees that whatever arrives is read without a panic, that errors stay
// short and what was read can be sent again without a change.
func FuzzParse(f *testing.F) {
	e := sample.Event()
	for name, value := range e.Message().Metadata {
		f.Add(e.ID.String(), name, value, transport.MetaSource, "s", e.Payload)
	}
	f.Add("", transport.MetaStamp, "9999-12-31T23:59:59-14:00", transport.MetaVersion, "9223372036854775808", []byte(nil))
	f.Add("", transport.MetaResendUntil, "2026-11-30T00:00:00Z", transport.MetaStamp, "2026-11-20T00:00:00Z", []byte(nil))
	f.Add("{}", transport.MetaStamp, "0000-01-01T00:00:00+14:00", transport.MetaDigest, "zz", []byte(nil))
	f.Fuzz(func(t *testing.T, id, name, value, otherName, otherValue string, payload []byte) {
		msg := message.NewMessage(id, payload)
		msg.Metadata.Set(otherName, otherValue)
		msg.Metadata.Set(name, value)
		e, err := transport.Parse("topic", msg)
		if err != nil {
			if len(err.Error()) > 500 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if e.Source == "" { // version and index are not sent without a source
			e.Version, e.Index = 0, 0
		}
		again, err := transport.Parse("topic", e.Message())
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Errorf("sent again: %+v, %v; was %+v", again, err, e)
		}
	})
}
