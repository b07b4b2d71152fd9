// Package storetest holds the contracts of stores as tests.
//
// A store that passes [Producer] can be an outbox's, one that passes [Consumer]
// an inbox's. They are for those who write a store of their own, and are called from a
// test of theirs:
//
//	func TestContract(t *testing.T) {
//		storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[*sql.Tx] {
//			store := open(t) // new and empty
//			return storetest.OutboxFixture[*sql.Tx]{Store: store, Begin: …, Commit: …, Rollback: …}
//		})
//	}
//
// The tests need nothing of a store but its contract. They wait for leases that
// expire and for locks, but never sleep for a time that a slow machine would
// make too short.
package storetest
