package idempotent_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/middleware/idempotent"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

func TestRepeatedRequestGetsTheFirstAnswerAndRunsNothing(t *testing.T) {
	t.Parallel()
	onEach(t, repeated[pgx.Tx], repeated[*sql.Tx])
}

func repeated[TX any](t *testing.T, open opener[TX]) {
	s := newShopOn(t, open(t), idempotent.Config{}, nil)
	first := s.do("key-1", "/orders", "lamp")
	s.want(first, http.StatusCreated, "placed", 1)
	for _, key := range []string{"key-1", `"key-1"`} {
		again := s.do(key, "/orders", "lamp")
		s.want(again, http.StatusCreated, "placed", 1)
		if again.Header().Get("Location") != "/orders/1" || again.Header().Get("Idempotency-Replayed") != "true" {
			t.Errorf("header %v", again.Header())
		}
		if again.Header().Get("Set-Cookie") != "" {
			t.Error("a cookie was stored")
		}
	}
	if first.Header().Get("Idempotency-Replayed") != "" || first.Header().Get("Set-Cookie") != "secret" {
		t.Errorf("header of the first: %v", first.Header())
	}
	s.want(s.do("key-2", "/orders", "lamp"), http.StatusCreated, "placed", 2)
	if n := s.calls.Load(); n != 2 {
		t.Errorf("handler was run %d times", n)
	}
}

func TestManyRepeatsAtOncePlaceOneOrder(t *testing.T) {
	t.Parallel()
	onEach(t, manyRepeats[pgx.Tx], manyRepeats[*sql.Tx])
}

func manyRepeats[TX any](t *testing.T, open opener[TX]) {
	s := newShopOn(t, open(t), idempotent.Config{MaxWait: time.Minute}, nil)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if resp := s.do("key", "/orders", "lamp"); resp.Code != http.StatusCreated {
				t.Errorf("status %d", resp.Code)
			}
		})
	}
	all.Wait()
	s.want(s.do("key", "/orders", "lamp"), http.StatusCreated, "placed", 1)
}

func TestKeyOfAnotherRequestIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{}, nil)
	s.do("key", "/orders", "lamp")
	s.want(s.do("key", "/orders", "chair"), http.StatusUnprocessableEntity, "", 1)
	s.want(s.do("key", "/orders?x=1", "lamp"), http.StatusUnprocessableEntity, "", 1)
	s.want(s.do("key", "/other", "lamp"), http.StatusUnprocessableEntity, "", 1)
	s.want(s.do("key", "/orders", "lamp", "Content-Type", "text/x"), http.StatusUnprocessableEntity, "", 1)
}

func TestScopesDoNotSeeEachOthersAnswers(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{Scope: func(r *http.Request) string { return r.Header.Get("Customer") }}, nil)
	s.want(s.do("key", "/orders", "lamp", "Customer", "a"), http.StatusCreated, "placed", 1)
	s.want(s.do("key", "/orders", "lamp", "Customer", "a"), http.StatusCreated, "placed", 1)
	other := s.do("key", "/orders", "lamp", "Customer", "b")
	s.want(other, http.StatusCreated, "placed", 2)
	if other.Header().Get("Idempotency-Replayed") != "" {
		t.Error("another customer got the answer")
	}
	resp := s.do("key", "/orders", "lamp", "Customer", strings.Repeat("x", 201))
	if resp.Code != http.StatusInternalServerError {
		t.Errorf("scope of 201 bytes: %d", resp.Code)
	}
}

func TestFailedRequestChangesNothingAndMayBeRepeated(t *testing.T) {
	t.Parallel()
	onEach(t, failed[pgx.Tx], failed[*sql.Tx])
}

func failed[TX any](t *testing.T, open opener[TX]) {
	for name, fail := range map[string]func(http.ResponseWriter) error{
		"an error": func(http.ResponseWriter) error { return errors.New("no luck") },
		"a server error": func(rw http.ResponseWriter) error {
			rw.WriteHeader(http.StatusInternalServerError)
			return nil
		},
		"an answer that is too large": func(rw http.ResponseWriter) error {
			_, _ = rw.Write(make([]byte, 101))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failing := true
			s := newShopOn(t, open(t), idempotent.Config{MaxAnswer: 100}, func(rw http.ResponseWriter, _ *http.Request, _ *producer.Writer[TX]) error {
				if failing {
					return fail(rw)
				}
				return nil
			})
			s.want(s.do("key", "/orders", "lamp"), http.StatusInternalServerError, "", 0)
			failing = false
			s.want(s.do("key", "/orders", "lamp"), http.StatusOK, "", 1)
		})
	}
}

func TestRefusalIsFinalForItsKeyAndChangesNothing(t *testing.T) {
	t.Parallel()
	onEach(t, refusal[pgx.Tx], refusal[*sql.Tx])
}

func refusal[TX any](t *testing.T, open opener[TX]) {
	soldOut := func(rw http.ResponseWriter, _ *http.Request, _ *producer.Writer[TX]) error {
		http.Error(rw, "sold out", http.StatusConflict)
		return nil
	}
	for name, test := range map[string]struct {
		cfg    idempotent.Config
		key    string
		placed int
		calls  int64
	}{
		"by default":         {idempotent.Config{}, "key", 0, 1},
		"without a key":      {idempotent.Config{Optional: true}, "", 0, 2},
		"with what it wrote": {idempotent.Config{KeepRefused: true}, "key", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShopOn(t, open(t), test.cfg, soldOut)
			for range 2 {
				s.want(s.do(test.key, "/orders", "lamp"), http.StatusConflict, "sold out\n", test.placed)
			}
			if n := s.calls.Load(); n != test.calls {
				t.Errorf("handler was run %d times", n)
			}
		})
	}
}

func TestAnswerThatAsksToComeAgainIsNotFinal(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		asks := true
		s := newShop(t, idempotent.Config{KeepRefused: true}, func(rw http.ResponseWriter, _ *http.Request, _ *producer.Writer[*sql.Tx]) error {
			if asks {
				rw.WriteHeader(status)
			}
			return nil
		})
		s.want(s.do("key", "/orders", "lamp"), status, "", 0)
		asks = false
		s.want(s.do("key", "/orders", "lamp"), http.StatusOK, "", 1)
	}
}

func TestKeyThatIsForgottenMakesANewRequest(t *testing.T) {
	t.Parallel()
	onEach(t, forgottenKey[pgx.Tx], forgottenKey[*sql.Tx])
}

func forgottenKey[TX any](t *testing.T, open opener[TX]) {
	s := newShopOn(t, open(t), idempotent.Config{}, nil)
	drop, err := idempotent.New(s.outbox, inbox.RequestStore[TX](s.store), idempotent.Config{Shared: true, Retention: 1})
	if err != nil {
		t.Fatal(err)
	}
	for n, item := range []string{"lamp", "lamp", "chair"} { // the outbox still has the events of the earlier requests
		s.want(s.do("key", "/orders", item), http.StatusCreated, "placed", n+1)
		if n, err := drop.RunOnce(t.Context()); n != 1 || err != nil {
			t.Fatalf("%d forgotten, %v", n, err)
		}
	}
}

func TestHandlerThatGoesOnAfterAFailedStatementIsNotToldToRepeat(t *testing.T) {
	t.Parallel()
	db := newPostgres(t)
	s := newShopOn(t, db, idempotent.Config{}, func(rw http.ResponseWriter, r *http.Request, w *producer.Writer[pgx.Tx]) error {
		_ = db.exec(r.Context(), w.DB(), `SELECT 1/0`)
		rw.WriteHeader(http.StatusCreated)
		return nil
	})
	s.want(s.do("key", "/orders", "lamp"), http.StatusInternalServerError, "", 0)
	if log := s.log.String(); !strings.Contains(log, "perhaps by ignoring an SQL error") {
		t.Errorf("log: %s", log)
	}
}

func TestPanicLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{}, func(http.ResponseWriter, *http.Request, *producer.Writer[*sql.Tx]) error {
		panic(http.ErrAbortHandler)
	})
	func() {
		defer func() { _ = recover() }()
		s.do("key", "/orders", "lamp")
	}()
	s.wantPlaced(0)
}

func TestUnknownCommitIsAskedForAgain(t *testing.T) {
	t.Parallel()
	onEach(t, unknownCommit[pgx.Tx], unknownCommit[*sql.Tx])
}

func unknownCommit[TX any](t *testing.T, open opener[TX]) {
	for name, c := range map[string]struct {
		lose  int64
		calls int64
	}{
		"that happened":       {1, 1},
		"that did not happen": {-1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShopOn(t, open(t), idempotent.Config{}, nil)
			s.store.lose.Store(c.lose)
			s.want(s.do("key", "/orders", "lamp"), http.StatusCreated, "placed", 1)
			if n := s.calls.Load(); n != c.calls {
				t.Errorf("handler was run %d times, want %d", n, c.calls)
			}
		})
	}
	t.Run("again and again", func(t *testing.T) {
		t.Parallel()
		s := newShopOn(t, open(t), idempotent.Config{}, nil)
		s.store.lose.Store(-100)
		resp := s.do("key", "/orders", "lamp")
		s.want(resp, http.StatusServiceUnavailable, "", 0)
		if resp.Header().Get("Retry-After") == "" || resp.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("header %v", resp.Header())
		}
	})
	t.Run("without a key", func(t *testing.T) {
		t.Parallel()
		s := newShopOn(t, open(t), idempotent.Config{Optional: true}, nil)
		s.store.lose.Store(1)
		s.want(s.do("", "/orders", "lamp"), http.StatusServiceUnavailable, "", 1)
	})
}

// TestAnswerWhoseCommitWasNotHeardOfIsSent breaks the connection between the server's commit and
// its reply.
func TestAnswerWhoseCommitWasNotHeardOfIsSent(t *testing.T) {
	t.Parallel()
	var thief *testenv.Thief
	var armed atomic.Bool
	s := newShopOn(t, newPostgresBehind(t, func(address string) string {
		thief, address = testenv.NewThief(t, address, func() bool { return armed.CompareAndSwap(true, false) })
		return address
	}), idempotent.Config{}, nil)
	armed.Store(true)
	s.want(s.do("key", "/orders", "lamp"), http.StatusCreated, "placed", 1)
	if n := s.calls.Load(); n != 1 || thief.Stolen() != 1 {
		t.Errorf("handler was run %d times, %d replies were lost", n, thief.Stolen())
	}
}

func TestRequestInProgressIsToldSo(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{}, nil)
	requests, err := idempotent.New(s.outbox, busy{s.store}, idempotent.Config{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	s.handler = requests.Handle(nil)
	resp := s.do("key", "/orders", "lamp")
	s.want(resp, http.StatusConflict, "", 0)
	if resp.Header().Get("Retry-After") == "" {
		t.Error("it does not say when to come back")
	}
}

// busy is a store in which every key is being handled.
type busy struct{ inbox.RequestStore[*sql.Tx] }

func (busy) ClaimRequest(context.Context, *sql.Tx, inbox.Request, time.Duration) (*inbox.Answer, error) {
	return nil, fmt.Errorf("claim: %w", inbox.ErrInProgress)
}

func TestBadRequestsAreRefusedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{MaxBody: 10}, nil)
	for name, c := range map[string]struct {
		key, body string
		header    []string
		status    int
	}{
		"no key":             {"", "x", nil, http.StatusBadRequest},
		"an empty key":       {`""`, "x", nil, http.StatusBadRequest},
		"a key of 256":       {strings.Repeat("x", 256), "x", nil, http.StatusBadRequest},
		"a key with a quote": {`a"b`, "x", nil, http.StatusBadRequest},
		"a key beyond ASCII": {"schlüssel", "x", nil, http.StatusBadRequest},
		"two keys":           {"a", "x", []string{"Idempotency-Key", "b"}, http.StatusBadRequest},
		"a large body":       {"a", "12345678901", nil, http.StatusRequestEntityTooLarge},
	} {
		resp := s.do(c.key, "/orders", c.body, c.header...)
		var problem struct {
			Status int
			Detail string
		}
		if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || problem.Status != c.status || problem.Detail == "" || resp.Code != c.status {
			t.Errorf("%s: %d, %+v, %v", name, resp.Code, problem, err)
		}
	}
	if n := s.calls.Load(); n != 0 {
		t.Errorf("handler was run %d times", n)
	}
}

func TestRequestWithoutAKeyIsHandledEachTimeIfThatIsAllowed(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{Optional: true}, nil)
	s.do("", "/orders", "lamp")
	s.want(s.do("", "/orders", "lamp"), http.StatusCreated, "placed", 2)
}

func TestLogTellsNeitherKeysNorBodies(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{}, func(http.ResponseWriter, *http.Request, *producer.Writer[*sql.Tx]) error {
		return errors.New("no luck")
	})
	s.do("key-canary", "/orders", "body-canary")
	if log := s.log.String(); !strings.Contains(log, "no luck") || strings.Contains(log, "canary") {
		t.Errorf("log: %s", log)
	}
}

func TestOldRequestsAreForgotten(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{}, nil)
	s.do("key", "/orders", "lamp")
	keep, err := idempotent.New(s.outbox, s.store, idempotent.Config{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := keep.RunOnce(t.Context()); n != 0 || err != nil {
		t.Errorf("%d forgotten, %v", n, err)
	}
	drop, err := idempotent.New(s.outbox, s.store, idempotent.Config{Shared: true, Retention: 1})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := drop.RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("%d forgotten, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := drop.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestBadConfigurationNamesTheField(t *testing.T) {
	t.Parallel()
	s := newShop(t, idempotent.Config{}, nil)
	for field, cfg := range map[string]idempotent.Config{
		"set either Scope or Shared": {},
		"MaxBody":                    {Shared: true, MaxBody: -1},
		"MaxAnswer":                  {Shared: true, MaxAnswer: -1},
		"MaxWait":                    {Shared: true, MaxWait: -1},
		"Retention":                  {Shared: true, Retention: -1},
		"Interval":                   {Shared: true, Interval: -1},
	} {
		if _, err := idempotent.New(s.outbox, s.store, cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := idempotent.New[*sql.Tx](nil, nil, idempotent.Config{Shared: true}); err == nil ||
		!strings.Contains(err.Error(), "outbox") || !strings.Contains(err.Error(), "store") {
		t.Errorf("without anything: %v", err)
	}
}
