package idempotent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

const (
	// HeaderKey is the header of a request with its idempotency key.
	HeaderKey = "Idempotency-Key"
	// HeaderReplayed is the header of an answer that was stored before.
	HeaderReplayed = "Idempotency-Replayed"
)

const (
	maxKey      = 255 // bytes of a key
	maxScope    = 200 // bytes of a scope, which becomes part of an event's Source
	forgetBatch = 1000
	// commits is how many times a request is tried while the outcome of its commit is unknown.
	commits = 3
)

// Requests makes HTTP handlers idempotent. It is safe for concurrent use.
type Requests[TX any] struct {
	outbox *producer.Outbox[TX]
	store  inbox.RequestStore[TX]
	cfg    Config
}

// HandlerFunc handles a request in a transaction, in which w writes events. The answer in rw is
// sent after the commit. On an error nothing is committed, and 500 is answered. A conflict of
// transactions may run the function again.
type HandlerFunc[TX any] func(rw http.ResponseWriter, r *http.Request, w *producer.Writer[TX]) error

// New returns a Requests, or an error that joins all mistakes. New does no I/O.
func New[TX any](outbox *producer.Outbox[TX], store inbox.RequestStore[TX], cfg Config) (*Requests[TX], error) {
	cfg, err := cfg.withDefaults()
	if outbox == nil {
		err = errors.Join(err, errors.New("outbox is nil"))
	}
	if store == nil {
		err = errors.Join(err, errors.New("store is nil"))
	}
	if err != nil {
		return nil, fmt.Errorf("idempotent requests config: %w", err)
	}
	return &Requests[TX]{outbox: outbox, store: store, cfg: cfg}, nil
}

type contextKey struct{}

// handled identifies the request in its context.
type handled struct {
	id   inbox.Request
	came int64 // in Unix nanoseconds; one claim of a key has one such time
}

// Key returns the idempotency key of the request in ctx, or "".
func Key(ctx context.Context) string {
	now, _ := ctx.Value(contextKey{}).(handled)
	return now.id.Key
}

// Identify sets the identity of e from the request in ctx: its scope, its key and the time of its
// arrival. The scope keeps equal keys of two customers apart; the time keeps a new request apart
// from an earlier one whose key is forgotten. The writer numbers the events of one request. Without
// a key, e gets a random identity.
func Identify(ctx context.Context, e producer.Event) producer.Event {
	now, _ := ctx.Value(contextKey{}).(handled)
	if now.id.Key == "" {
		e.Source, e.IdempotencyKey, e.Random = "", "", true
		return e
	}
	e.Source, e.IdempotencyKey = "request/"+now.id.Scope+" "+strconv.FormatInt(now.came, 10), now.id.Key
	return e
}

// Handle returns an HTTP handler that runs fn once for each key.
func (q *Requests[TX]) Handle(fn HandlerFunc[TX]) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		in, p := q.read(rw, r)
		if p == nil {
			p = q.serve(rw, in, fn) //nolint:contextcheck // it is the request's
		}
		if p != nil {
			p.write(rw)
		}
	})
}

// incoming is a request with its body.
type incoming struct {
	r    *http.Request
	body []byte
	id   inbox.Request // Key is "" if the client sent no key
}

// read reads the key and the body of a request.
func (q *Requests[TX]) read(rw http.ResponseWriter, r *http.Request) (*incoming, *problem) {
	in := &incoming{r: r}
	values := r.Header.Values(HeaderKey)
	switch {
	case len(values) == 0 && q.cfg.Optional:
	case len(values) == 0:
		return nil, &problem{http.StatusBadRequest, "The header " + HeaderKey + " is required."}
	default:
		key, ok := parseKey(values)
		if !ok {
			return nil, &problem{http.StatusBadRequest, "The header " + HeaderKey + " is not one string of 1 to 255 printable characters."}
		}
		in.id.Key = key
	}
	if q.cfg.Scope != nil {
		in.id.Scope = q.cfg.Scope(r)
	}
	if len(in.id.Scope) > maxScope || !utf8.ValidString(in.id.Scope) || bytes.IndexByte([]byte(in.id.Scope), 0) >= 0 {
		q.cfg.Logger.ErrorContext(r.Context(), "scope of a request is not UTF-8 text of at most 200 bytes")
		return nil, &problem{http.StatusInternalServerError, "The request cannot be handled."}
	}
	var tooLarge *http.MaxBytesError
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, int64(q.cfg.MaxBody)))
	switch {
	case errors.As(err, &tooLarge):
		return nil, &problem{http.StatusRequestEntityTooLarge, fmt.Sprintf("The body has more than %d bytes.", q.cfg.MaxBody)}
	case err != nil:
		return nil, &problem{http.StatusBadRequest, "The body cannot be read."}
	}
	in.body = body
	in.id.Fingerprint = fingerprint(r, body)
	return in, nil
}

// parseKey reads a key, with or without the quotes of a structured field.
func parseKey(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	key := values[0]
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	if len(key) < 1 || len(key) > maxKey {
		return "", false
	}
	for _, c := range []byte(key) {
		if c < 0x20 || c > 0x7e || c == '"' || c == '\\' {
			return "", false
		}
	}
	return key, true
}

// fingerprint is a hash of the content of a request.
func fingerprint(r *http.Request, body []byte) [32]byte {
	h := sha256.New()
	for _, part := range []string{r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Get("Content-Type")} {
		fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	h.Write(body)
	return [32]byte(h.Sum(nil))
}

// serve handles a request, or answers it from the store.
func (q *Requests[TX]) serve(rw http.ResponseWriter, in *incoming, fn HandlerFunc[TX]) *problem {
	ctx := context.WithValue(in.r.Context(), contextKey{}, handled{in.id, time.Now().UnixNano()})
	in.r = in.r.WithContext(ctx)
	var rec *recorder
	stored, err := q.transact(ctx, in, func(ctx context.Context, w *producer.Writer[TX]) error {
		rec = newRecorder(q.cfg.MaxAnswer)
		return q.run(ctx, w, in, rec, fn)
	}, func() *recorder { return rec })
	if errors.Is(err, errRefused) && in.id.Key != "" { // the changes are rolled back; store the answer alone
		stored, err = q.transact(ctx, in, func(context.Context, *producer.Writer[TX]) error { return nil }, func() *recorder { return rec })
	}
	switch {
	case err == nil && stored != nil && stored.Fingerprint != in.id.Fingerprint:
		return &problem{http.StatusUnprocessableEntity, "The idempotency key was used for another request."}
	case err == nil && stored != nil:
		rw.Header().Set(HeaderReplayed, "true")
		q.send(rw, *stored)
		return nil
	case err == nil, errors.Is(err, errServer), errors.Is(err, errRefused):
		q.send(rw, rec.answer())
		return nil
	default:
		return q.problem(ctx, err)
	}
}

var (
	// errServer rolls back the transaction of a handler whose answer asks for a repeat.
	errServer = errors.New("handler answered that the request is to be repeated")
	// errRefused rolls back the transaction of a handler that refused its request.
	errRefused = errors.New("handler refused the request")
)

// handlerError marks an error of the handler, as opposed to errors of the database.
type handlerError struct{ error }

func (e *handlerError) Unwrap() error { return e.error }

// transact claims the key, calls do, and stores the answer, in one transaction. It returns the
// stored answer if the key had one.
func (q *Requests[TX]) transact(ctx context.Context, in *incoming, do func(context.Context, *producer.Writer[TX]) error, answer func() *recorder) (stored *inbox.Answer, err error) {
	var unknown error // the last unknown outcome
	for range commits {
		err = q.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[TX]) (err error) {
			if in.id.Key == "" {
				return do(ctx, w)
			}
			if stored, err = q.store.ClaimRequest(ctx, w.DB(), in.id, q.cfg.MaxWait); stored != nil || err != nil {
				return err
			}
			if err := do(ctx, w); err != nil {
				return err
			}
			return q.store.AnswerRequest(ctx, w.DB(), in.id, storable(answer().answer(), in.id.Fingerprint))
		})
		// A repeated claim shows whether the commit happened. Without a key the outcome stays
		// unknown.
		if !errors.Is(err, outbox.ErrCommitUnknown) || in.id.Key == "" {
			break
		}
		unknown = err
	}
	if errors.Is(err, inbox.ErrUnanswered) {
		err = errors.Join(unknown, err) // unknown says what the handler did
	}
	return stored, err
}

// run calls the handler. On an error its transaction must not be committed.
func (q *Requests[TX]) run(ctx context.Context, w *producer.Writer[TX], in *incoming, rec *recorder, fn HandlerFunc[TX]) error {
	r := in.r.Clone(ctx) // a repeated run gets an unchanged request
	r.Body = io.NopCloser(bytes.NewReader(in.body))
	if err := fn(rec, r, w); err != nil {
		return &handlerError{err}
	}
	switch status := rec.status(); {
	case rec.err != nil:
		return &handlerError{rec.err}
	case status >= http.StatusInternalServerError, status == http.StatusTooManyRequests, status == http.StatusTooEarly, status == http.StatusRequestTimeout:
		return errServer
	case status >= http.StatusBadRequest && !q.cfg.KeepRefused:
		return errRefused
	}
	return nil
}

// storable returns the part of an answer that is stored.
func storable(a inbox.Answer, fingerprint [32]byte) inbox.Answer {
	a.Header = maps.Clone(a.Header)
	delete(a.Header, "Set-Cookie")
	a.Fingerprint = fingerprint
	return a
}

func (q *Requests[TX]) send(rw http.ResponseWriter, a inbox.Answer) {
	maps.Copy(rw.Header(), a.Header)
	rw.WriteHeader(a.Status)
	_, _ = rw.Write(a.Body) // a disconnected client repeats its request
}

// problem logs why a request was not committed, and returns the error for the client.
func (q *Requests[TX]) problem(ctx context.Context, err error) *problem {
	var failed *handlerError
	switch {
	case errors.Is(err, inbox.ErrInProgress):
		return &problem{http.StatusConflict, "A request with this idempotency key is being handled."}
	case errors.Is(err, inbox.ErrUnanswered):
		q.cfg.Logger.ErrorContext(ctx, "outcome of a request is unknown", "error", err)
		return &problem{http.StatusInternalServerError, "It is unknown how much of the request was carried out."}
	case errors.As(err, &failed):
		q.cfg.Logger.ErrorContext(ctx, "handler of a request failed", "error", failed.error)
		return &problem{http.StatusInternalServerError, "The request failed. Nothing was changed."}
	case ctx.Err() == nil && q.handlers(err):
		q.cfg.Logger.ErrorContext(ctx, "handler of a request left its transaction unfit to commit, perhaps by ignoring an SQL error", "error", err)
		return &problem{http.StatusInternalServerError, "The request failed. Nothing was changed."}
	default:
		q.cfg.Logger.ErrorContext(ctx, "transaction of a request failed", "error", err)
		return &problem{http.StatusServiceUnavailable, "The request may be repeated with the same idempotency key."}
	}
}

// handlers tells whether the handler caused the error of a transaction that was not committed.
func (q *Requests[TX]) handlers(err error) bool {
	if errors.Is(err, inbox.ErrRolledBack) {
		return true
	}
	store, ok := q.store.(interface {
		Classify(err error) inbox.ErrorClass
	})
	return ok && !errors.Is(err, outbox.ErrCommitUnknown) && store.Classify(err) == inbox.HandlerError
}

// Run removes requests older than Config.Retention until ctx ends, and then returns nil.
func (q *Requests[TX]) Run(ctx context.Context) error {
	ticker := time.NewTicker(q.cfg.Interval)
	defer ticker.Stop()
	for {
		if _, err := q.RunOnce(ctx); err != nil && ctx.Err() == nil {
			q.cfg.Logger.WarnContext(ctx, "removing old requests failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// RunOnce removes the requests older than Config.Retention, in small transactions, and returns
// their number. It stops at the first error.
func (q *Requests[TX]) RunOnce(ctx context.Context) (int, error) {
	total := 0
	for {
		n, err := q.store.ForgetRequests(ctx, q.cfg.Retention, forgetBatch)
		total += n
		if err != nil || n < forgetBatch {
			return total, err
		}
	}
}
