// Package storetest tests stores against their contracts.
//
// A store that passes [Producer] can keep an outbox, and a store that passes [Consumer] an inbox.
// The author of a store calls both from a test:
//
//	func TestContract(t *testing.T) {
//		storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[*sql.Tx] {
//			store := open(t) // new and empty
//			return storetest.OutboxFixture[*sql.Tx]{Store: store, Begin: …, Commit: …, Rollback: …}
//		})
//	}
//
// The tests use only the contract of a store. They wait for locks and for the end of leases, but
// never sleep for a time that would be too short on a slow machine.
package storetest
