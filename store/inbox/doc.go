// Package inbox is the contract between a consumer and the store of its inbox: the interfaces that
// a store implements, their values, and the errors that both sides know.
//
// Applications use this package to operate an inbox: [Filter], [State] and [Parked] for waiting and
// dead messages, [EffectFilter] and [Effect] for the ledger of effects, [Stats], and the errors to
// compare with errors.Is. The stores of this library are in store/postgres, store/mysql and
// store/sqlite. Package store/storetest tests any store against the contract.
package inbox
