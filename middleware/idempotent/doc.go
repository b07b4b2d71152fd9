// Package idempotent lets HTTP clients repeat a request without repeating its effects.
//
// A client that got no answer cannot know whether its request was carried out. It
// sends the request again with the same Idempotency-Key, and this package sees to it that
// the handler's changes and events are committed once, and that the repeat gets the
// answer of the first:
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
//	go requests.Run(ctx) // forgets what is past its retention
//
// The header is that of the IETF's draft "The Idempotency-Key HTTP Header Field"
// (draft-ietf-httpapi-idempotency-key-header); its value is taken with or without quotes.
//
// # Guarantees
//
// The key is claimed by an insert in the transaction of the handler's changes, and
// the answer is stored there too: either all three are committed, or none. Of two
// requests with one key the second waits for the first, for Config.MaxWait.
//
// # Answers
//
// What a request that is not simply handled is answered with, as problem details
// (RFC 9457):
//
//	400  the key is missing or malformed
//	409  a request with this key is being handled
//	413  the body is larger than Config.MaxBody
//	422  the key was used for another request: another method, path, query or body
//	500  the handler returned an error, or left its transaction such that it cannot be committed; nothing was committed
//	500  likewise, if the handler has committed its transaction where the store could not refuse it: how much of the
//	     request was carried out is not known
//	503  the database could not be reached, or did not tell the outcome
//
// A refusal by the handler, with a status from 400 to 499, is an answer like any other and final
// for the key, but what the handler changed before is rolled back, unless Config.KeepRefused is
// set.
//
// A repeat carries the header Idempotency-Replayed: true. An answer of 500 or more, and of 408, 425
// or 429, which ask the client to come again, is sent and not stored, and the handler's changes are
// rolled back: a repeat runs it again. All other answers are final for the key, until
// Config.Retention is over.
//
// # Limitations
//
// The handler's effects elsewhere are not undone by a rollback and may be repeated by a
// further try. An answer is held in memory until its transaction is committed, so it
// cannot be streamed. Set-Cookie is not stored, since it may be a secret; the rest of an
// answer is, for Config.Retention: then the key is forgotten, and a repeat is a new request.
package idempotent
