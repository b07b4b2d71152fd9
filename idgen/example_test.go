package idgen_test

import (
	"fmt"

	"github.com/boxpair/boxpair/idgen"
)

func ExampleOf() {
	first := idgen.Of("orders", "order-42", 3, 0)
	again := idgen.Of("orders", "order-42", 3, 0)
	other := idgen.Of("billing", "order-42", 3, 0)
	fmt.Println(first)
	fmt.Println("again the same:", again == first)
	fmt.Println("of another producer the same:", other == first)
	// Output:
	// 7b2abb5f-1692-59f9-97e7-278eeaec6b30
	// again the same: true
	// of another producer the same: false
}

func ExampleOfKey() {
	// What the client sent as Idempotency-Key.
	const key = "7b0e7f3e-54c5-4c8b-8a55-9f0f8e8f1c11"
	fmt.Println(idgen.OfKey("orders", "checkout", key, 0))
	// Output: 05724ceb-2ae9-5a17-bf93-c2e9cc58b32f
}

func ExampleChild() {
	placed := idgen.Of("orders", "order-42", 3, 0)
	reserved := idgen.Child("inventory.reserve", placed, 0)
	captured := idgen.Child("payments.capture", reserved, 0)
	fmt.Println(reserved)
	fmt.Println(captured)
	// Output:
	// 0bfa0e22-39db-5aee-94e4-829026a7bc58
	// 930ccc9f-1911-5de5-ae0f-d63f6febed4a
}

func ExampleShard() {
	placed := idgen.Of("orders", "order-42", 3, 0)
	cancelled := idgen.Of("orders", "order-42", 4, 0)
	fmt.Println(idgen.Shard("order-42", placed), idgen.Shard("order-42", cancelled), idgen.Shard("", placed))
	// Output: 59 59 48
}
