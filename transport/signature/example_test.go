package signature_test

import (
	"fmt"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/signature"
)

// A relay signs its messages, and a consumer accepts no other messages. While a key is being
// replaced, the consumer has both keys.
func ExampleNewVerifier() {
	oldKey := signature.Key{ID: "2026-11", Secret: []byte("32 random bytes, as openssl makes")}
	newKey := signature.Key{ID: "2026-12", Secret: []byte("32 others: openssl rand -out f 32")}
	signer, err := signature.NewSigner(newKey) // relay.Config{Signer: signer}
	if err != nil {
		fmt.Println(err)
		return
	}
	verifier, err := signature.NewVerifier(oldKey, newKey) // consumer.Config{Verifier: verifier}
	if err != nil {
		fmt.Println(err)
		return
	}

	e := transport.Event{ID: idgen.Of("orders", "order-42", 3, 0), Topic: "order.placed", Payload: []byte(`{"order":42}`)}
	msg := e.Message()
	signer.Sign("order.placed", msg)
	_, err = verifier.Verify("order.placed", msg)
	fmt.Println("as it was sent:", err)
	msg.Payload = []byte(`{"order":43}`)
	_, err = verifier.Verify("order.placed", msg)
	fmt.Println("altered:", err)
	_, err = verifier.Verify("order.placed", e.Message())
	fmt.Println("not signed:", err)
	// Output:
	// as it was sent: <nil>
	// altered: message is not verified: its signature does not fit its content and topic
	// not signed: message is not verified: it has no signature
}
