// Package ops is the dashboard of outboxes and inboxes: one [http.Handler] shows what waits, since
// when and why, and lets operators redrive, discard, move and pause.
//
//	handler, err := ops.New(ops.Config{
//		Path:     "/ops",
//		Outboxes: []ops.Outbox{{Name: "shop", Operator: outbox, Parts: []any{store}}},
//		Inboxes:  []ops.Inbox{{Name: "stock", Operator: inbox, Effects: ledger, Parts: []any{store, auditor}}},
//		Token:    os.Getenv("OPS_TOKEN"),
//	})
//	mux.Handle("/ops/", handler)
//
// # Access
//
// By default, only requests from the same machine to a loopback name are answered, and the dashboard
// is read-only. With [Config].Token, everybody with the token is an operator. With
// [Config].Authorize, the application decides. A change is a POST request from a page of the
// dashboard, and needs the role [Operator] and a reason. Each change is logged with its reason and
// user, and is recorded in the history of the changed row, as far as the outbox or inbox keeps one.
//
// Payloads and headers are shown with [Config].Payloads only.
//
// # Cost
//
// A page calls the operator's interfaces of outboxes and inboxes with limits; no call reads a whole
// table. The state of an outbox or an inbox is read at most once a second for all users together, and
// only while a page is open. The handler starts no goroutine.
//
// # Limitations
//
// Rates are known for the time in which a page was open, and to the process that has answered. A page
// says so if a store does not have its data.
package ops
