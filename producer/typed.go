package producer

import (
	"github.com/boxpair/boxpair/transport/schema"
)

// Typed returns e with value as its payload, and with the topic, key, type, schema version and
// content type of t. A topic or key already in e is kept. The caller sets the identity in e. The
// error is the error of [schema.Type.Encode].
//
//	event, err := producer.Typed(placed, producer.Event{Source: "order/42", Version: 1}, OrderPlaced{…})
//	_, err = w.Write(ctx, event)
func Typed[T any](t *schema.Type[T], e Event, value T) (Event, error) {
	payload, err := t.Encode(value)
	if err != nil {
		return Event{}, err
	}
	if e.Topic == "" {
		e.Topic = t.Topic()
	}
	if e.Key == "" {
		e.Key = t.Key(value)
	}
	e.Type, e.SchemaVersion, e.ContentType, e.Payload = t.Name(), t.Version(), t.ContentType(), payload
	return e, nil
}
