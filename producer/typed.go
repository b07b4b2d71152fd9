package producer

import (
	"github.com/boxpair/boxpair/transport/schema"
)

// Typed returns the event that carries value: e, which brings the identity, with the topic,
// type, key, schema version, content type and payload that t says. What e has of topic and
// key is kept. The error is that of [schema.Type.Encode].
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
