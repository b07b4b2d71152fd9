// Package ops is the dashboard of outboxes and inboxes: one [http.Handler] that shows what waits,
// since when and why, and that redrives, discards, moves and pauses.
//
//	handler, err := ops.New(ops.Config{
//		Path:     "/ops",
//		Outboxes: []ops.Outbox{{Name: "shop", Operator: outbox, Parts: []any{store}}},
//		Inboxes:  []ops.Inbox{{Name: "stock", Operator: inbox, Effects: ledger, Parts: []any{store, auditor}}},
//		Token:    os.Getenv("OPS_TOKEN"),
//	})
//	mux.Handle("/ops/", handler)
//
// # Who may see it
//
// Without a setting, only requests from the same machine, and to a loopback name, are answered, and
// none of them may change anything. With [Config].Token, whoever has the token is an operator. With
// [Config].Authorize, the application decides. Changes are POST requests of the dashboard's own pages
// only, need the role [Operator] and a reason, and stand with the reason and the user in the history
// of what was changed, as far as the outbox and the inbox keep one, and in the log.
//
// Payloads and headers are shown with [Config].Payloads only.
//
// # What it costs
//
// A page makes calls with limits of the operator's interfaces of outboxes and inboxes, and none that
// reads a whole table. The state of an outbox or an inbox is read at most once a second, however many
// people look, and not at all while nobody does. The handler starts no goroutine.
//
// # Limitations
//
// Rates are known for the time in which somebody has looked, and to the process that has answered.
// A page about something that a store does not tell says so.
package ops
