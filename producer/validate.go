package producer

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/boxpair/boxpair/producer/internal/field"
	"github.com/boxpair/boxpair/transport"
)

// validate checks e against the limits of c. Its errors name fields, never values.
func (c *Config) validate(e *Event) error {
	var errs []error
	text := func(name, s string, least int) {
		if err := field.Text(name, s, least); err != nil {
			errs = append(errs, err)
		}
	}
	text("Topic", e.Topic, 1)
	text("Key", e.Key, 0)
	text("Type", e.Type, 0)
	text("Source", e.Source, 0)
	text("IdempotencyKey", e.IdempotencyKey, 0)
	text("ContentType", e.ContentType, 0)
	text("CorrelationID", e.CorrelationID, 0)
	text("TraceParent", e.TraceParent, 0)
	if err := field.Value("TraceState", e.TraceState); err != nil {
		errs = append(errs, err)
	} else if len(e.TraceState) > maxTraceState {
		errs = append(errs, fmt.Errorf("TraceState: has %d bytes, more than %d", len(e.TraceState), maxTraceState))
	}
	if e.SchemaVersion < 0 || e.SchemaVersion > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("SchemaVersion: %d is not between 0 and %d", e.SchemaVersion, math.MaxInt32))
	}
	if year := e.OccurredAt.UTC().Year(); year < 1 || year > 9999 {
		errs = append(errs, fmt.Errorf("OccurredAt: the year %d is not between 1 and 9999", year))
	}
	if err := checkDeliverAt(e.DeliverAt); err != nil {
		errs = append(errs, fmt.Errorf("DeliverAt: %w", err))
	}
	if len(e.Payload) > c.MaxPayload {
		errs = append(errs, fmt.Errorf("Payload: has %d bytes, more than Config.MaxPayload of %d", len(e.Payload), c.MaxPayload))
	}
	errs = append(errs, c.validateHeaders(e.Headers))
	return errors.Join(errs...)
}

// checkDeliverAt checks that a time can be stored.
func checkDeliverAt(at time.Time) error {
	if year := at.UTC().Year(); year < 1 || year > 9999 {
		return fmt.Errorf("the year %d is not between 1 and 9999", year)
	}
	return nil
}

func (c *Config) validateHeaders(headers map[string]string) error {
	if len(headers) > maxHeaderCount {
		return fmt.Errorf("Headers: there are %d, more than %d", len(headers), maxHeaderCount)
	}
	var errs []error
	size := 0
	for name, value := range headers {
		size += len(name) + len(value)
		if err := field.Text("Headers: a name", name, 1); err != nil {
			errs = append(errs, err)
			continue
		}
		if transport.IsReserved(name) {
			errs = append(errs, fmt.Errorf("Headers: the name %q is reserved", name))
		}
		if err := field.Value(fmt.Sprintf("Headers: the value of %q", name), value); err != nil {
			errs = append(errs, err)
		}
	}
	if size > c.MaxHeaders {
		errs = append(errs, fmt.Errorf("Headers: have %d bytes, more than Config.MaxHeaders of %d", size, c.MaxHeaders))
	}
	return errors.Join(errs...)
}
