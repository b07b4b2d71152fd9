// Package inbox is the contract between a consumer and the store of its inbox: the interfaces that
// a store implements, the values that cross them, and the errors that both sides know.
//
// An application meets it where it operates an inbox: [Filter], [State] and [Parked] for messages
// that wait or are dead, [EffectFilter] and [Effect] for the ledger of effects, [Stats], and the
// errors that it compares with errors.Is. The stores of this library are in store/postgres,
// store/mysql and store/sqlite. Package store/storetest holds the contract as tests for any other.
package inbox
