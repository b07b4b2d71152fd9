package protobuf_test

import (
	"fmt"
	"log"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport/schema"
	"github.com/boxpair/boxpair/transport/schema/protobuf"
)

// A generated message is the value of a type as any other is. producer.Typed and consumer.Typed
// write and handle it.
func Example() {
	counted, err := schema.New(schema.Config[*wrapperspb.Int64Value]{ // or *shopv1.StockCounted, of a package of your own
		Name:  "stock.counted",
		Key:   func(*wrapperspb.Int64Value) string { return "lamp" },
		Codec: protobuf.Codec{},
	})
	if err != nil {
		log.Fatal(err)
	}
	event, err := producer.Typed(counted, producer.Event{Source: "stock/lamp", Version: 1}, wrapperspb.Int64(42))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s for %s: %d bytes of %s\n", event.Type, event.Key, len(event.Payload), event.ContentType)

	value, err := counted.Decode(event.Payload, event.SchemaVersion, event.ContentType)
	fmt.Println(value.GetValue(), err)
	// Output:
	// stock.counted for lamp: 2 bytes of application/x-protobuf
	// 42 <nil>
}
