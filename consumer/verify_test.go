package consumer_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/signature"
)

var signingKey = signature.Key{ID: "k1", Secret: bytes.Repeat([]byte("k"), signature.MinSecret)}

func signed(t *testing.T, m *message.Message) *message.Message {
	t.Helper()
	s, err := signature.NewSigner(signingKey)
	if err != nil {
		t.Fatal(err)
	}
	s.Sign("orders", m)
	return m
}

func verifying(t *testing.T) setup {
	t.Helper()
	v, err := signature.NewVerifier(signingKey)
	if err != nil {
		t.Fatal(err)
	}
	return setup{config: consumer.Config{Verifier: v}, handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}, Order: consumer.OrderConfig{ByKey: true}}}
}

// TestMessageThatIsNotVerifiedIsNeverRun, and takes nothing from the genuine one: neither its
// dispatch ID nor its place.
func TestMessageThatIsNotVerifiedIsNeverRun(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]func(*message.Message) *message.Message{
		"unsigned": func(m *message.Message) *message.Message { return m },
		"altered": func(m *message.Message) *message.Message {
			m = signed(t, m)
			m.Payload = []byte("forged")
			return m
		},
		"new stamp": func(m *message.Message) *message.Message {
			m = signed(t, m)
			m.Metadata[transport.MetaStamp] = "2036-01-01T00:00:00Z"
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, verifying(t))
			forged := forge(keyed(1, "key"))
			r.consume(forged)
			r.consume(forged.Copy()) // comes again: kept once
			r.wantCalls(0)
			r.wantStates(inbox.Dead)
			m := r.parked()
			if m.ID == number(1) || m.Metadata[consumer.MetaForeignID] != number(1).String() ||
				!strings.Contains(m.LastError, signature.ErrNotVerified.Error()) {
				t.Errorf("parked as %+v", m)
			}
			r.wantLog("level=ERROR", "cannot be handled", "not verified")

			r.consume(signed(t, keyed(1, "key")))
			r.wantDone(number(1), 1)
			r.consume(signed(t, keyed(1, "key")))
			r.wantCalls(1)
		})
	}
}

func TestMessageThatIsNotVerifiedIsNotRunWhenItIsRedriven(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]setup{"with a verifier": verifying(t), "without one by then": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := newRig(t, verifying(t))
			first.consume(keyed(1, "key"))
			s.store = first.store
			r := newRig(t, s)
			ids, err := r.inbox.Redrive(t.Context(), inbox.Filter{}, "mended")
			if err != nil || len(ids) != 1 {
				t.Fatalf("Redrive: %v, %v", ids, err)
			}
			if err := r.inbox.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.wantCalls(0)
			r.wantStates(inbox.Dead)
		})
	}
}

func TestHandlerSeesOnlyWhatIsSigned(t *testing.T) {
	t.Parallel()
	r := newRig(t, verifying(t))
	m := signed(t, msg(1))
	m.Metadata["x-death"] = "[]"
	r.consume(m)
	r.wantDone(number(1), 1)
	s := verifying(t)
	s.fn = func(_ context.Context, w *work, msg *message.Message) error {
		if _, ok := msg.Metadata["admin"]; ok || len(w.Event().Headers) != 0 {
			t.Errorf("metadata %v", msg.Metadata)
		}
		return nil
	}
	r = newRig(t, s)
	m = signed(t, msg(2))
	m.Metadata["admin"] = "true"
	r.consume(m)
	r.wantCalls(1)
}
