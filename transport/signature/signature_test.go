package signature_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/internal/sample"
	"github.com/boxpair/boxpair/transport/signature"
)

var (
	oldKey = signature.Key{ID: "2026-11", Secret: bytes.Repeat([]byte("old!"), 8)}
	newKey = signature.Key{ID: "2026-12", Secret: bytes.Repeat([]byte("new!"), 8)}
)

func signer(t testing.TB, key signature.Key) *signature.Signer {
	t.Helper()
	s, err := signature.NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func verifier(t testing.TB, keys ...signature.Key) *signature.Verifier {
	t.Helper()
	v, err := signature.NewVerifier(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func signedMessage(t testing.TB, key signature.Key) *message.Message {
	t.Helper()
	e := sample.Event()
	e.Headers = map[string]string{"tenant": "acme", "a,b%2C": "odd", "": "empty"}
	msg := e.Message()
	signer(t, key).Sign("topic", msg)
	return msg
}

func TestSignedMessageIsVerified(t *testing.T) {
	t.Parallel()
	msg := signedMessage(t, oldKey)
	before := maps.Clone(msg.Metadata)
	got, err := verifier(t, newKey, oldKey).Verify("topic", msg)
	if err != nil {
		t.Fatal(err)
	}
	delete(before, transport.MetaSignature)
	delete(before, transport.MetaSigned)
	if !maps.Equal(got, before) {
		t.Errorf("%v, want %v", got, before)
	}
	signer(t, newKey).Sign("topic", msg)
	if _, err := verifier(t, newKey).Verify("topic", msg); err != nil {
		t.Errorf("signed again: %v", err)
	}
}

// TestSignatureIsAsDocumented computes it a second time, from what the documentation says.
func TestSignatureIsAsDocumented(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("3f5f7d2e-6d2b-5c62-9d0a-3f6a1b2c3d4e", []byte("payload"))
	msg.Metadata = message.Metadata{transport.MetaKey: "k", "a,b%": "1", "tenant": "é"}
	signer(t, oldKey).Sign("topic", msg)
	h := hmac.New(sha256.New, oldKey.Secret)
	for _, part := range []string{
		"boxpair signature 1", "2026-11", "topic", msg.UUID, "payload",
		"a,b%", "1", transport.MetaKey, "k", "tenant", "é",
	} {
		fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	want := "1;2026-11;" + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
	if got := msg.Metadata[transport.MetaSignature]; got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
	if got := msg.Metadata[transport.MetaSigned]; got != "a%2Cb%25,tenant" {
		t.Errorf("signed: %s", got)
	}
}

// What decorators, publishers and brokers add on the way does no harm, and does not reach the
// handler.
func TestMetadataThatIsNotSignedIsTakenOff(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"x-death", transport.MetaTraceParent, transport.MetaCorrelationID, transport.ReservedPrefix + "publish-seq", "_watermill_message_uuid",
	} {
		e := sample.Event()
		e.CorrelationID, e.TraceParent = "", ""
		msg := e.Message()
		signer(t, oldKey).Sign("topic", msg)
		msg.Metadata[name] = "added"
		got, err := verifier(t, oldKey).Verify("topic", msg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, ok := got[name]; ok || msg.Metadata[name] == "" {
			t.Errorf("%s: verified: %v, as it came: %v", name, got, msg.Metadata)
		}
	}
}

// TestSignaturesOfEarlierVersionsAreVerified: they covered all reserved names, and listed the
// others.
func TestSignaturesOfEarlierVersionsAreVerified(t *testing.T) {
	t.Parallel()
	msg := signedMessage(t, oldKey)
	listed := msg.Metadata[transport.MetaSigned]
	for _, name := range []string{transport.MetaCorrelationID, transport.MetaTraceParent, transport.MetaTraceState} {
		if !strings.Contains(listed, name) {
			t.Errorf("%s is signed and not listed: %s", name, listed)
		}
		listed = strings.Replace(listed, ","+name, "", 1)
	}
	msg.Metadata[transport.MetaSigned] = listed
	want := maps.Clone(msg.Metadata)
	delete(want, transport.MetaSignature)
	delete(want, transport.MetaSigned)
	got, err := verifier(t, oldKey).Verify("topic", msg)
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	msg.Metadata[transport.MetaTraceParent] += "!"
	if _, err := verifier(t, oldKey).Verify("topic", msg); !errors.Is(err, signature.ErrNotVerified) {
		t.Errorf("altered: %v", err)
	}
}

func TestMessageThatIsNotAsSignedIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(m *message.Message){
		"no signature":    func(m *message.Message) { delete(m.Metadata, transport.MetaSignature) },
		"empty signature": func(m *message.Message) { m.Metadata[transport.MetaSignature] = "" },
		"other format": func(m *message.Message) {
			m.Metadata[transport.MetaSignature] = "2" + m.Metadata[transport.MetaSignature][1:]
		},
		"no MAC": func(m *message.Message) { m.Metadata[transport.MetaSignature] = "1;2026-11;" },
		"MAC cut short": func(m *message.Message) {
			m.Metadata[transport.MetaSignature] = m.Metadata[transport.MetaSignature][:20]
		},
		"key not known": func(m *message.Message) {
			m.Metadata[transport.MetaSignature] = strings.Replace(m.Metadata[transport.MetaSignature], "11", "10", 1)
		},
		"ID of the other key": func(m *message.Message) {
			m.Metadata[transport.MetaSignature] = strings.Replace(m.Metadata[transport.MetaSignature], "11", "12", 1)
		},
		"dispatch ID":       func(m *message.Message) { m.UUID = "3f5f7d2e-6d2b-5c62-9d0a-3f6a1b2c3d4e" },
		"payload":           func(m *message.Message) { m.Payload = append(bytes.Clone(m.Payload), '!') },
		"key":               func(m *message.Message) { m.Metadata[transport.MetaKey] += "!" },
		"no key":            func(m *message.Message) { delete(m.Metadata, transport.MetaKey) },
		"digest":            func(m *message.Message) { m.Metadata[transport.MetaDigest] = strings.Repeat("0", 32) },
		"stamp":             func(m *message.Message) { m.Metadata[transport.MetaStamp] = "2030-01-01T00:00:00Z" },
		"no stamp":          func(m *message.Message) { delete(m.Metadata, transport.MetaStamp) },
		"producer":          func(m *message.Message) { m.Metadata[transport.MetaProducer] = "other" },
		"correlation ID":    func(m *message.Message) { m.Metadata[transport.MetaCorrelationID] += "!" },
		"header":            func(m *message.Message) { m.Metadata["tenant"] = "evil" },
		"no header":         func(m *message.Message) { delete(m.Metadata, "tenant") },
		"header not listed": func(m *message.Message) { m.Metadata[transport.MetaSigned] = "" },
		"another one listed": func(m *message.Message) {
			m.Metadata["admin"] = "true"
			m.Metadata[transport.MetaSigned] += ",admin"
		},
		"renamed header": func(m *message.Message) {
			m.Metadata["tenant2"] = m.Metadata["tenant"]
			m.Metadata[transport.MetaSigned] = strings.Replace(m.Metadata[transport.MetaSigned], "tenant", "tenant2", 1)
		},
	} {
		msg := signedMessage(t, oldKey)
		change(msg)
		_, err := verifier(t, oldKey, newKey).Verify("topic", msg)
		if !errors.Is(err, signature.ErrNotVerified) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := verifier(t, oldKey).Verify("other topic", signedMessage(t, oldKey)); !errors.Is(err, signature.ErrNotVerified) {
		t.Errorf("sent to another topic: %v", err)
	}
	stranger := signature.Key{ID: oldKey.ID, Secret: newKey.Secret}
	if _, err := verifier(t, oldKey).Verify("topic", signedMessage(t, stranger)); !errors.Is(err, signature.ErrNotVerified) {
		t.Errorf("signed with another secret: %v", err)
	}
}

func TestKeysAreChecked(t *testing.T) {
	t.Parallel()
	for field, key := range map[string]signature.Key{
		"ID: ": {ID: "a;b", Secret: oldKey.Secret}, "ID: \"\"": {Secret: oldKey.Secret},
		"Secret: ": {ID: "k", Secret: oldKey.Secret[1:]}, "Secret: has 0": {ID: "k"},
	} {
		if _, err := signature.NewSigner(key); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := signature.NewVerifier(oldKey, key); err == nil || !strings.Contains(err.Error(), "key 1: ") || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := signature.NewVerifier(oldKey, oldKey); err == nil {
		t.Error("two keys of one ID")
	}
	if _, err := signature.NewVerifier(); err == nil {
		t.Error("no key")
	}
}

// Only what prints bytes by their type could show a secret: no verb of fmt does.
func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	logger.Info("x", "key", oldKey)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		fmt.Fprintf(&log, verb+"\n", oldKey)
		fmt.Fprintf(&log, verb+"\n", *signer(t, oldKey))
		fmt.Fprintf(&log, verb+"\n", signer(t, oldKey))
		fmt.Fprintf(&log, verb+"\n", *verifier(t, oldKey))
	}
	text, err := json.Marshal([]any{signer(t, oldKey), verifier(t, oldKey)})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"old!", "111 108 100", "0x6f", "6f6c64", "b2xk"} {
		if strings.Contains(log.String()+string(text), secret) {
			t.Errorf("%q in %s%s", secret, log.String(), text)
		}
	}
}

// FuzzVerify: whatever arrives is refused without a panic, or is what was signed.
func FuzzVerify(f *testing.F) {
	msg := signedMessage(f, oldKey)
	f.Add(msg.UUID, []byte(msg.Payload), msg.Metadata[transport.MetaSignature], msg.Metadata[transport.MetaSigned], "tenant", "acme")
	f.Add("", []byte(nil), "1;2026-11;", "%2,,%25%2C", "%,", "")
	v := verifier(f, oldKey)
	f.Fuzz(func(t *testing.T, id string, payload []byte, text, list, name, value string) {
		forged := message.NewMessage(id, payload)
		forged.Metadata = message.Metadata{name: value, transport.MetaSignature: text, transport.MetaSigned: list}
		if _, err := v.Verify("topic", forged); !errors.Is(err, signature.ErrNotVerified) || len(err.Error()) > 100 {
			t.Errorf("%v", err)
		}
		genuine := message.NewMessage(id, payload)
		genuine.Metadata = message.Metadata{name: value}
		signer(t, oldKey).Sign("topic", genuine)
		if name == transport.MetaSignature || name == transport.MetaSigned {
			return
		}
		got, err := v.Verify("topic", genuine)
		if err != nil || got[name] != value || len(got) != 1 {
			t.Errorf("%q is verified as %v, %v", name, got, err)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	e := sample.Event()
	s, msg := signer(b, oldKey), e.Message()
	b.ReportAllocs()
	for b.Loop() {
		s.Sign("topic", msg)
	}
}

// batchSender keeps what it is given.
type batchSender struct {
	transport.Sender
	topic string
	msgs  []*message.Message
}

func (s *batchSender) SendBatch(_ context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	s.topic, s.msgs = topic, msgs
	done(transport.Result{Outcome: transport.Confirmed})
}

func (s *batchSender) BatchLimit() (messages, bytes int) { return 7, 100 }

func TestMessagesOfABatchAreSigned(t *testing.T) {
	t.Parallel()
	next := &batchSender{}
	sender, is := signer(t, newKey).Sender(next).(transport.BatchSender)
	if !is {
		t.Fatal("the signing sender takes no batches")
	}
	if messages, size := sender.BatchLimit(); messages != 7 || size != 100 {
		t.Errorf("limit of %d messages and %d bytes", messages, size)
	}
	first, second := sample.Event(), sample.Event()
	results := 0
	sender.SendBatch(t.Context(), "topic", []*message.Message{first.Message(), second.Message()}, func(transport.Result) { results++ })
	if results != 1 || next.topic != "topic" || len(next.msgs) != 2 {
		t.Fatalf("%d outcomes, %d messages to %q", results, len(next.msgs), next.topic)
	}
	for i, msg := range next.msgs {
		if _, err := verifier(t, newKey).Verify("topic", msg); err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if _, is := signer(t, newKey).Sender(struct{ transport.Sender }{}).(transport.BatchSender); is {
		t.Error("a sender without batches takes batches when it signs")
	}
}
