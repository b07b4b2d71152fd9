package transport_test

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/transport"
)

func ExampleEvent_Message() {
	e := transport.Event{
		ID:      idgen.Of("orders", "order-42", 3, 0),
		Topic:   "order.placed",
		Key:     "order-42",
		Payload: []byte(`{"order":42}`),
		Headers: map[string]string{"tenant": "acme"},
	}
	msg := e.Message()
	fmt.Println(msg.UUID)
	fmt.Println(msg.Metadata.Get(transport.MetaKey), msg.Metadata.Get("tenant"))
	// Output:
	// 7b2abb5f-1692-59f9-97e7-278eeaec6b30
	// order-42 acme
}

func ExampleParse() {
	msg := message.NewMessage("01ARZ3NDEKTSV4RRFFQ69G5FAV", nil) // a ULID of another publisher
	msg.Metadata.Set(transport.MetaKey, "order-42")
	e, err := transport.Parse("order.placed", msg)
	fmt.Println(e.Key, errors.Is(err, transport.ErrNotDispatchID))
	// Output: order-42 true
}

func ExampleContentDigest() {
	written := transport.Event{Topic: "order.placed", Payload: []byte(`{"order":42}`), CorrelationID: "request-1"}
	retried := written
	retried.CorrelationID = "request-2"
	altered := written
	altered.Payload = []byte(`{"order":43}`)
	digest := transport.ContentDigest(&written)
	fmt.Println("retried:", digest.Matches(transport.ContentDigest(&retried)))
	fmt.Println("altered:", digest.Matches(transport.ContentDigest(&altered)))
	// Output:
	// retried: true
	// altered: false
}
