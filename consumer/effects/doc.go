// Package effects keeps a ledger of a handler's effects outside the database: a call to a payment
// provider, a mail. Such a call cannot commit with the claim of its message. [Handle] registers a
// handler in three steps; the second step is the call:
//
//	pay, err := effects.Handle(inbox, "pay", effects.Effect[pgx.Tx, Charge, Receipt]{
//		Prepare: func(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) (Charge, error) { … },
//		Do:      func(ctx context.Context, key uuid.UUID, c Charge) (Receipt, error) { … },
//		Finish:  func(ctx context.Context, w *consumer.Work[pgx.Tx], c Charge, r Receipt) error { … },
//	}, effects.Config{Idempotent: true})
//	router.AddConsumerHandler("pay", "order.placed", subscriber, pay.Consume)
//	err = inbox.Run(ctx) // calls Do and Finish
//
// # States of an effect
//
//	pending ──► doing ──► answered ──► done
//	   ▲          │           └─ Finish failed MaxAttempts times ──► dead, with its result
//	   │          ├─ not carried out, or idempotent ──► pending, after a backoff
//	   │          ├─ may have been carried out ──► uncertain
//	   │          └─ rejected, or MaxAttempts reached ──► dead
//	   └── redriven by an operator, from uncertain and dead
//
// An operator records the result of an uncertain effect (answered), redrives the effect, or
// discards the effect: see [Ledger].
//
// # What survives a crash
//
//	in Prepare           nothing is recorded; the message is delivered again
//	intent committed     a pending effect; [consumer.Inbox.Run] of any process takes it up
//	taken up, or in Do   an effect under a lease. When the lease ends, the effect is tried again
//	                     with the same key if Config.Idempotent or Effect.Probe is set, and is
//	                     uncertain otherwise
//	in Finish            nothing of Finish is committed. When the lease ends, an effect whose
//	                     result was recorded before is answered; otherwise as in Do
//	Finish committed     a done effect
//
// # Guarantees
//
//   - An intent is recorded exactly when the message is claimed, once for all copies of the
//     message.
//   - Finish commits exactly when the effect becomes done.
//   - All attempts of an effect have one key, and no other effect has this key.
//   - Do runs outside any transaction and holds no connection.
//
// # Limitations
//
//   - Whether the other side carries one key out once is up to the other side.
//   - Intents and results are kept unencrypted for the window of the inbox.
package effects
