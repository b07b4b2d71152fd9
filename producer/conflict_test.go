package producer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
)

// TestConflictNamesItsEventAndARemedy, and shows neither its key nor its payload.
func TestConflictNamesItsEventAndARemedy(t *testing.T) {
	t.Parallel()
	out := newOutbox(t, &fakeEvents{}, producer.Config{})
	write := func(payload string) error {
		return out.Transact(t.Context(), func(ctx context.Context, w *writer) error {
			e := placed(3)
			e.Key, e.Payload = "secret-key", []byte(payload)
			_, err := w.Write(ctx, e)
			return err
		})
	}
	if err := write("secret-one"); err != nil {
		t.Fatal(err)
	}
	err := write("secret-other")
	if !errors.Is(err, outbox.ErrConflict) {
		t.Fatalf("error is %v", err)
	}
	e := placed(3)
	for _, part := range []string{
		"event " + idgen.Of("orders", e.Source, 3, 0).String(), fmt.Sprintf("topic %q", e.Topic), fmt.Sprintf("source %q", e.Source), "version 3", "index 0",
		"a Version or an IdempotencyKey of its own",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("%q shows the event", err)
	}
}
