// Package idempotent lets HTTP clients repeat a request without repeating its effects.
//
// A client without an answer cannot know whether its request was carried out. The client sends the
// request again with the same Idempotency-Key. The handler's changes and events are committed once,
// and the repeat gets the first answer:
//
//	requests, err := idempotent.New(outbox, store, idempotent.Config{
//		Scope: func(r *http.Request) string { return customerOf(r) },
//	})
//	mux.Handle("POST /orders", requests.Handle(
//		func(rw http.ResponseWriter, r *http.Request, w *producer.Writer[pgx.Tx]) error {
//			… w.DB() … w.Write(r.Context(), idempotent.Identify(r.Context(), producer.Event{ … }))
//			rw.WriteHeader(http.StatusCreated)
//			return nil
//		}))
//	go requests.Run(ctx) // removes requests that are past their retention
//
// The header is defined by the IETF draft "The Idempotency-Key HTTP Header Field"
// (draft-ietf-httpapi-idempotency-key-header). Its value may be quoted or not.
//
// # Guarantees
//
// The key is claimed by an insert in the transaction of the handler's changes, and the answer is
// stored in the same transaction: the claim, the changes and the answer commit together or not at
// all. If two requests carry one key, the second waits for the first, for Config.MaxWait.
//
// # Answers
//
// These errors are answered as problem details (RFC 9457):
//
//	400  the key is missing or malformed, or the body cannot be read
//	409  a request with this key is being handled
//	413  the body is larger than Config.MaxBody
//	422  the key was used for another request: another method, path, query, content type or body
//	500  the handler returned an error, or left its transaction unfit to commit; nothing was
//	     committed
//	500  the handler committed its transaction where the store could not refuse the commit: how
//	     much of the request was carried out is unknown
//	500  Config.Scope returned an invalid scope
//	503  the database could not be reached, or did not tell the outcome
//
// An answer with a status from 400 to 499 is a refusal. It is final for the key, but the handler's
// changes are rolled back unless Config.KeepRefused is set.
//
// An answer of 500 or more, and of 408, 425 or 429, asks the client to repeat the request. It is
// sent and not stored, and the handler's changes are rolled back: a repeat runs the handler again.
// All other answers are final for the key, until Config.Retention is over. A repeated answer
// carries the header Idempotency-Replayed: true.
//
// # Limitations
//
// A rollback does not undo the handler's effects elsewhere; a repeat may repeat them. An answer is
// held in memory until its transaction is committed, so it cannot be streamed. Set-Cookie is not
// stored, since a cookie may be a secret. The rest of an answer is stored for Config.Retention;
// then the key is forgotten, and a repeat is a new request.
package idempotent
