// Package outbox is the contract between a producer and the store of its outbox: the interfaces
// that a store implements, the values that cross them, and the errors that both sides know.
//
// An application meets it where it operates an outbox: [Filter], [State] and [Parked] for events
// that wait or are dead, [DeferredFilter], [Selection] for a replay, [Stats], and the errors that
// it compares with errors.Is. The stores of this library are in store/postgres, store/mysql and
// store/sqlite. Package store/storetest holds the contract as tests for any other.
package outbox
