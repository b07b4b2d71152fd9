package child

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
)

// Order is what a producer places and an event tells of.
type Order struct {
	Producer string `json:"producer"`
	Number   int64  `json:"number"`
	Key      string `json:"key"`
	N        int64  `json:"n"` // its place among the orders of its key, from 1
	Amount   int64  `json:"amount"`
	Fill     string `json:"fill"`
}

// NewOrder is the order with a number. Everything but its place follows from it.
func NewOrder(producer string, number int64, keys int) Order {
	return Order{
		Producer: producer, Number: number,
		Key:    fmt.Sprintf("key-%d", number%int64(keys)),
		Amount: number*7919%1000 - 300,
	}
}

// Source is what the order's event comes from.
func (o *Order) Source() string { return fmt.Sprintf("order/%s/%d", o.Producer, o.Number) }

// Dispatch is the dispatch ID that the order's event must have.
func (o *Order) Dispatch() uuid.UUID { return idgen.Of(OutboxName, o.Source(), 1, 0) }

// event is the order's event. The payload has size bytes at least.
func (o *Order) event(topic string, size int) (producer.Event, error) {
	told := *o
	told.Fill = Canary + strings.Repeat(".", max(0, size-len(Canary)))
	payload, err := json.Marshal(told)
	return producer.Event{
		Topic: topic, Key: o.Key, Type: "order.placed", Source: o.Source(), Version: 1,
		ContentType: "application/json", Payload: payload, Headers: map[string]string{"token": Canary},
	}, err
}

// Receipt is the dispatch ID of the event that a service's handler emits for a dispatch.
func Receipt(service string, dispatch uuid.UUID) uuid.UUID {
	return idgen.Child(ConsumerName(service), dispatch, 0)
}
