// Package outbox is the contract between a producer and the store of its outbox: the interfaces
// that a store implements, their values, and the errors that both sides know.
//
// Applications use this package to operate an outbox: [Filter], [State] and [Parked] for waiting
// and dead events, [DeferredFilter], [Selection] for a replay, [Stats], and the errors to compare
// with errors.Is. The stores of this library are in store/postgres, store/mysql and store/sqlite.
// Package store/storetest tests any store against the contract.
package outbox
