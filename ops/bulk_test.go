package ops_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

const refused = "refused by the broker: queue length limit exceeded"

// pile is an outbox and an inbox with dead letters, numbered from 1 on.
type pile struct {
	t        *testing.T
	dead     []bool // by number - 1
	changed  map[int64]int
	poisoned int64         // the number of a letter that dies again at once
	takes    time.Duration // a batch
	busy     time.Duration
	wait     func(time.Duration)
	apart    bool // whether batches have events of one shard
}

func newPile(t *testing.T, n int, apart bool) *pile {
	t.Helper()
	p := &pile{t: t, changed: make(map[int64]int), poisoned: int64(n) / 2, apart: apart, takes: time.Millisecond}
	p.add(n)
	return p
}

func (p *pile) add(n int) { p.dead = append(p.dead, slices.Repeat([]bool{true}, n)...) }

// change redrives letters, and lets another letter die meanwhile.
func (p *pile) change(ids []uuid.UUID) ([]uuid.UUID, error) {
	shards := make(map[int64]bool)
	for _, id := range ids {
		text := id.String()
		n, err := strconv.ParseInt(text[len(text)-12:], 10, 64)
		if err != nil {
			p.t.Error(err)
		}
		shards[n%64] = true
		p.changed[n]++
		p.dead[n-1] = n == p.poisoned
	}
	if p.apart && (len(shards) != 1 || len(ids) > 100) {
		p.t.Errorf("a batch has %d letters of %d shards", len(ids), len(shards))
	}
	p.wait(p.takes)
	p.busy += p.takes
	p.add(1)
	return ids, nil
}

type pileOfEvents struct {
	ops.OutboxOperator
	*pile
}

func (p pileOfEvents) Search(_ context.Context, q outbox.Query) (r outbox.Results, err error) {
	from := int64(len(p.dead))
	if q.Before > 0 {
		from = q.Before - 1
	}
	for n := from; n > 0; n-- {
		if !p.dead[n-1] || len(q.IDs) > 0 && q.IDs[0] != numbered(n) {
			continue
		}
		e := outbox.Found{Seq: n, State: outbox.Dead, LastError: refused}
		e.ID, e.Topic, e.Shard = numbered(n), "mail.requested", int(n%64)
		if r.Events = append(r.Events, e); len(r.Events) == q.Limit {
			r.Before = n
			break
		}
	}
	return r, nil
}

func (p pileOfEvents) Causes(context.Context, outbox.Filter) ([]outbox.Cause, error) { return nil, nil }

func (p pileOfEvents) ListParked(context.Context, outbox.Filter) ([]outbox.Parked, error) {
	return nil, nil
}

func (p pileOfEvents) Redrive(_ context.Context, f outbox.Filter, _ string) ([]uuid.UUID, error) {
	return p.change(f.IDs)
}

type pileOfMessages struct {
	ops.InboxOperator
	*pile
}

func (p pileOfMessages) ListParked(_ context.Context, f inbox.Filter) (list []inbox.Parked, err error) {
	for n := f.After + 1; n <= int64(len(p.dead)) && len(list) < f.Limit; n++ {
		if p.dead[n-1] && (len(f.IDs) == 0 || f.IDs[0] == numbered(n)) {
			list = append(list, inbox.Parked{
				Message: inbox.Message{ID: numbered(n), Topic: "mail.requested"}, Consumer: "stock/reserve", State: inbox.Dead, Seq: n, LastError: refused,
			})
		}
	}
	return list, nil
}

func (p pileOfMessages) SearchMessages(context.Context, inbox.Query) (r inbox.Results, err error) {
	r.Messages = []inbox.Found{{Seq: int64(len(p.dead))}}
	return r, nil
}

func (p pileOfMessages) MessageCauses(context.Context, inbox.Filter) ([]inbox.Cause, error) {
	return nil, nil
}

func (p pileOfMessages) Redrive(_ context.Context, f inbox.Filter, _ string) ([]uuid.UUID, error) {
	return p.change(f.IDs)
}

// send sends a form from a browser on the same machine.
func send(t *testing.T, h http.Handler, form url.Values) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/dead/redrive", strings.NewReader(form.Encode()))
	req.RemoteAddr, req.Host = "127.0.0.1:40000", "localhost:8080"
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// TestOneClickChangesAllLettersOfACause, step by step, each of them once, and none that died later.
func TestOneClickChangesAllLettersOfACause(t *testing.T) {
	t.Parallel()
	for kind, c := range map[string]struct {
		n, steps int
		share    float64 // of the time that changes take
	}{
		"outbox": {20_000, 3, 0.05}, "inbox": {50_000, 2, 0.3}, "few events": {300, 1, 1},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPile(t, c.n, kind == "outbox")
				p.wait = func(d time.Duration) { time.Sleep(d) }
				cfg := ops.Config{Loopback: ops.Operator, Logger: slog.New(slog.DiscardHandler)}
				form := url.Values{"kind": {"outbox"}, "source": {"shop"}, "id": {numbered(1).String()}, "scope": {"cause"}, "all": {strconv.Itoa(c.n)}, "reason": {"mended"}, "back": {"/dead"}}
				if kind == "inbox" {
					cfg.Inboxes = []ops.Inbox{{Name: "shop", Operator: pileOfMessages{pile: p}}}
					p.takes = 25 * time.Millisecond
					form.Set("kind", "inbox")
					form.Set("consumer", "stock/reserve")
				} else {
					cfg.Outboxes = []ops.Outbox{{Name: "shop", Operator: pileOfEvents{pile: p}}}
				}
				h, err := ops.New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				steps, began := 1, time.Now()
				w := send(t, h, form)
				for ; w.Code == http.StatusOK; steps++ {
					body := w.Body.String()
					if !strings.Contains(body, fmt.Sprintf(" of %d,000 redriven</h1>", c.n/1000)) || !strings.Contains(body, "Continue</button>") {
						t.Fatalf("step %d: %s", steps, body)
					}
					form = url.Values{}
					for _, field := range hidden.FindAllStringSubmatch(body, -1) {
						form.Set(field[1], field[2])
					}
					step := time.Now()
					w = send(t, h, form)
					if took := time.Since(step); took > 5*time.Second {
						t.Errorf("a step takes %v", took)
					}
				}
				if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/dead" {
					t.Fatalf("%d: %s", w.Code, w.Body)
				}
				if share := p.busy.Seconds() / time.Since(began).Seconds(); steps < c.steps || share > c.share {
					t.Errorf("%d steps, with %.2f of the time", steps, share)
				}
				for n := range int64(len(p.dead)) {
					if want := map[bool]int{true: 1}[n < int64(c.n)]; p.changed[n+1] != want {
						t.Errorf("letter %d was changed %d times, want %d", n+1, p.changed[n+1], want)
						break
					}
				}
			})
		})
	}
}

func TestDamagedStepIsRefused(t *testing.T) {
	t.Parallel()
	p := newPile(t, 3, false)
	h, err := ops.New(ops.Config{Loopback: ops.Operator, Logger: slog.New(slog.DiscardHandler), Outboxes: []ops.Outbox{{Name: "shop", Operator: pileOfEvents{pile: p}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"", "x", "e30", "eyJDYXVzZSI6eyJTdGF0ZSI6InBlbmRpbmcifX0"} {
		w := send(t, h, url.Values{"kind": {"outbox"}, "source": {"shop"}, "reason": {"mended"}, "bulk": {step}})
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "Bulk: is damaged") || len(p.changed) > 0 {
			t.Errorf("%q: %d: %s", step, w.Code, w.Body)
		}
	}
}
