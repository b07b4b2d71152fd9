package child

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
)

// Order is an order of a producer, and the payload of its event.
type Order struct {
	Producer string `json:"producer"`
	Number   int64  `json:"number"`
	Key      string `json:"key"`
	N        int64  `json:"n"` // its place among the orders of its key, from 1
	Amount   int64  `json:"amount"`
	Fill     string `json:"fill"`
}

// NewOrder returns the order with a number. All fields except its place follow from the number.
func NewOrder(producer string, number int64, keys int) Order {
	return Order{
		Producer: producer, Number: number,
		Key:    fmt.Sprintf("key-%d", number%int64(keys)),
		Amount: number*7919%1000 - 300,
	}
}

// Source returns the source of the order's event.
func (o *Order) Source() string { return fmt.Sprintf("order/%s/%d", o.Producer, o.Number) }

// Dispatch returns the dispatch ID that the order's event must have.
func (o *Order) Dispatch() uuid.UUID { return idgen.Of(OutboxName, o.Source(), 1, 0) }

// event returns the order's event. The payload has at least size bytes.
func (o *Order) event(topic string, size int) (producer.Event, error) {
	told := *o
	told.Fill = Canary + strings.Repeat(".", max(0, size-len(Canary)))
	payload, err := json.Marshal(told)
	return producer.Event{
		Topic: topic, Key: o.Key, Type: "order.placed", Source: o.Source(), Version: 1,
		ContentType: "application/json", Payload: payload, Headers: map[string]string{"token": Canary},
	}, err
}

// Receipt returns the dispatch ID of the event that a service's handler emits for a dispatch.
func Receipt(service string, dispatch uuid.UUID) uuid.UUID {
	return idgen.Child(ConsumerName(service), dispatch, 0)
}
