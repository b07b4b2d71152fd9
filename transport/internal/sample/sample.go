// Package sample has the event that tests of the wire contract use.
package sample

import (
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/transport"
)

// Event returns an event with every field set, and so metadata under every name of the contract.
func Event() transport.Event {
	e := transport.Event{
		ID:            idgen.Of("orders", "order-42", 3, 1),
		Topic:         "order.placed",
		Key:           "order-42",
		Type:          "OrderPlaced",
		Payload:       []byte("{\"order\":42}\x00\xff"),
		Producer:      "orders",
		Source:        "order-42",
		Version:       3,
		Index:         1,
		SchemaVersion: 2,
		ContentType:   "application/json",
		Headers:       map[string]string{"tenant": "acme", "empty": "", "Umlaut-ä": "ö\n"},
		Stamp:         time.Date(2026, 11, 20, 10, 30, 0, 123456789, time.UTC),
		ResendUntil:   time.Date(2026, 11, 30, 10, 30, 0, 123456789, time.UTC),
		CorrelationID: "request-1",
		TraceParent:   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		TraceState:    "vendor=value",
	}
	e.Digest = transport.ContentDigest(&e)
	return e
}
