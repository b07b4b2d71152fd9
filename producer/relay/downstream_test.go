package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/transport"
)

// taken is a sender that notes topics, and confirms.
type taken struct {
	fakeSender
	mu     sync.Mutex
	topics []string
}

func newTaken() *taken {
	s := &taken{}
	s.answer = func(topic string, _ *message.Message) transport.Result {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.topics = append(s.topics, topic)
		return transport.Result{Outcome: transport.Confirmed}
	}
	return s
}

func (s *taken) want(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.topics)
	if !slices.Equal(s.topics, want) {
		t.Errorf("topics %q, want %q", s.topics, want)
	}
}

func TestTheFirstDownstreamThatTakesATopicGetsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		for _, topic := range []string{"order.placed", "order.paid", "stock.low", "other"} {
			f.Add(topic, "key")
		}
		billing, stock, rest := newTaken(), newTaken(), newTaken()
		r := relayOn(t, f, &f.Local, rest, Config{Downstreams: []Downstream{
			{Name: "billing", Publisher: billing, Topics: []string{"order.paid"}, Prefix: "shop.", Rename: map[string]string{"order.paid": "paid"}},
			{Name: "stock", Publisher: stock, Topics: []string{"order.*", "stock.#"}, Prefix: "warehouse."},
		}})
		report, err := r.RunOnce(t.Context())
		if err != nil || report.Delivered != 4 {
			t.Errorf("%+v, %v", report, err)
		}
		billing.want(t, "shop.paid")
		stock.want(t, "warehouse.order.placed", "warehouse.stock.low")
		rest.want(t, "other")
	})
}

func TestATopicThatNobodyTakesWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		f.Add("other", "key")
		f.Add("order.placed", "key2")
		sender := newTaken()
		r := relayOn(t, f, &f.Local, nil, Config{
			Downstreams: []Downstream{{Name: "orders", Publisher: sender, Topics: []string{"order.#"}}},
			RouteGrace:  time.Second,
		})
		stop := running(t, r)
		time.Sleep(time.Minute)
		problems := fmt.Sprint(r.Health())
		stop()
		sender.want(t, "order.placed")
		if queued, _ := f.Left(); queued != 1 || len(f.Failures) != 0 {
			t.Errorf("%d left, %d attempts counted", queued, len(f.Failures))
		}
		if !strings.Contains(problems, ErrNoDownstream.Error()) {
			t.Errorf("health does not tell: %s", problems)
		}
	})
}

func TestADownstreamThatAnswersNothingHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		for i := range 400 {
			f.Add("dead", fmt.Sprint("dead", i))
			f.Add("live", fmt.Sprint("live", i))
		}
		dead, live := &fakeSender{silent: true}, newTaken()
		r := relayOn(t, f, &f.Local, live, Config{
			Window:      100,
			Downstreams: []Downstream{{Name: "dead", Publisher: dead, Topics: []string{"dead"}}},
		})
		stop := running(t, r)
		time.Sleep(10 * time.Second) // well below SendTimeout
		live.mu.Lock()
		n := len(live.topics)
		live.mu.Unlock()
		if n != 400 {
			t.Errorf("%d of 400 events of the other topic were delivered", n)
		}
		if n := len(dead.messages()); n > 50 {
			t.Errorf("%d events in flight at a downstream with a window of 50", n)
		}
		stop()
		dead.pending.Wait()
		if len(f.Failures) != 0 {
			t.Errorf("%d attempts counted", len(f.Failures))
		}
	})
}

// TestASilentMessageWithRoomBesideItHoldsUpNothing: a downstream is stuck when its window is full,
// or Send does not return.
func TestASilentMessageWithRoomBesideItHoldsUpNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fact            string
		window          int
		silent, blocked bool
		want            transport.Outcome
	}{
		{"one is silent, and there is room", 2, true, false, transport.Confirmed},
		{"one is silent, and that is the whole window", 1, true, false, transport.Unavailable},
		{"Send does not return", 2, false, true, transport.Unavailable},
	} {
		t.Run(c.fact, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				sender := &pickySender{silent: c.silent, blocked: c.blocked, ended: ctx.Done()}
				board := &topicRouter{}
				board.add(Downstream{Name: "a", Topics: []string{"#"}, Window: c.window}, sender)
				board.start(ctx)
				results := make(chan transport.Result, 1)
				board.Send(ctx, "odd", message.NewMessage("", nil), func(transport.Result) {})
				time.Sleep(10 * stuckAfter)
				board.Send(ctx, "topic", message.NewMessage("", nil), func(res transport.Result) { results <- res })
				if res := <-results; res.Outcome != c.want {
					t.Errorf("the next message is %v (%v), want %v", res.Outcome, res.Err, c.want)
				}
				cancel()
				board.tasks.Wait()
			})
		})
	}
}

// pickySender confirms everything but the messages of the topic odd.
type pickySender struct {
	fakeSender
	silent, blocked bool
	ended           <-chan struct{}
}

func (s *pickySender) Send(_ context.Context, topic string, _ *message.Message, done func(transport.Result)) {
	switch {
	case topic != "odd":
		done(transport.Result{Outcome: transport.Confirmed})
	case s.blocked:
		<-s.ended
	}
}

func TestDownstreamsKeepTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		var want []string
		for range 50 {
			want = append(want, f.ID(f.Add("a", "key")).String())
		}
		a := &fakeSender{took: time.Millisecond}
		r := relayOn(t, f, &f.Local, nil, Config{Downstreams: []Downstream{{Name: "a", Publisher: a, Topics: []string{"a"}, Window: 3}}})
		if _, err := r.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, msg := range a.messages() {
			got = append(got, msg.UUID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("order %q", got)
		}
	})
}

// batchTaker is a sender that takes batches.
type batchTaker struct {
	fakeSender
	batches []string
}

func (s *batchTaker) SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	s.mu.Lock()
	s.batches = append(s.batches, fmt.Sprint(topic, " ", len(msgs)))
	s.sent = append(s.sent, msgs[1:]...)
	s.mu.Unlock()
	s.Send(ctx, topic, msgs[0], done)
}

func (s *batchTaker) BatchLimit() (messages, bytes int) { return 10, 1000 }

// TestDownstreamTakesBatches if its publisher does, up to half of its window, and others go on
// without.
func TestDownstreamTakesBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		for range 12 {
			f.Add("a", "key a")
			f.Add("b", "key b")
		}
		a, b := &batchTaker{}, newTaken()
		r := relayOn(t, f, &f.Local, b, Config{
			Downstreams: []Downstream{{Name: "a", Publisher: a, Topics: []string{"a"}, Window: 8, Prefix: "shop."}},
		})
		report, err := r.RunOnce(t.Context())
		if err != nil || report.Delivered != 24 {
			t.Errorf("%+v, %v", report, err)
		}
		// The first fetch of a relay brings one event of each shard, which is sent by itself, unless the
		// second fetch is answered before.
		batches := strings.Join(a.batches, ", ")
		if (batches != "shop.a 4, shop.a 4, shop.a 3" && batches != "shop.a 4, shop.a 4, shop.a 4") || len(a.messages()) != 12 {
			t.Errorf("%d messages, in batches %s", len(a.messages()), batches)
		}
		b.want(t, slices.Repeat([]string{"b"}, 12)...)

		// What is not asked for is refused, rather than lost.
		board := &topicRouter{}
		board.add(Downstream{Name: "b"}, b)
		results := make(chan transport.Result, 1)
		board.queues[0].send(&outgoing{ctx: t.Context(), msgs: make([]*message.Message, 2), done: func(r transport.Result) { results <- r }})
		if r := <-results; r.Outcome != transport.Invalid {
			t.Errorf("a batch for who takes none is %v", r.Outcome)
		}
	})
}

// TestBatchGoesToADownstreamWithAPlaceInItsWindow: were it to wait for as many places as it has
// messages, a few of a silent route would hold up all that is behind it.
func TestBatchGoesToADownstreamWithAPlaceInItsWindow(t *testing.T) {
	t.Parallel()
	for silent, want := range map[int]int{0: 2, 3: 2, 4: 0} {
		t.Run(fmt.Sprint(silent, " silent"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				taker := &batchTaker{fakeSender: fakeSender{silent: true}}
				board := &topicRouter{}
				board.add(Downstream{Name: "a", Topics: []string{"#"}, Window: 4}, taker)
				board.start(ctx)
				messages, _ := board.batchLimit("topic")
				if messages != 2 {
					t.Errorf("batches of up to %d messages in a window of 4", messages)
				}
				for range silent {
					board.Send(ctx, "silent", message.NewMessage("", nil), func(transport.Result) {})
				}
				synctest.Wait()
				both := []*message.Message{message.NewMessage("", nil), message.NewMessage("", nil)}
				board.SendBatch(ctx, "topic", both, func(transport.Result) {})
				synctest.Wait()
				if got := len(taker.messages()) - silent; got != want {
					t.Errorf("%d of a batch of 2 were sent, want %d", got, want)
				}
				cancel()
				board.tasks.Wait()
				taker.pending.Wait()
			})
		})
	}
}

func TestAnyPublisherMayBeADownstream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		for i := range 30 {
			f.Add("a", fmt.Sprint(i))
		}
		p := &plainPublisher{}
		var tries int
		p.publish = func(string, []*message.Message) error {
			if tries++; tries == 1 {
				return errors.New("not yet")
			}
			return nil
		}
		r := relayOn(t, f, &f.Local, nil, Config{Downstreams: []Downstream{{Name: "plain", Publisher: p, Topics: []string{"#"}}}})
		stop := running(t, r)
		time.Sleep(time.Minute)
		stop()
		if queued, _ := f.Left(); queued != 0 || len(p.passed) != 30 {
			t.Errorf("%d left, %d published", queued, len(p.passed))
		}
	})
}

func TestDownstreamErrorsNameTheField(t *testing.T) {
	t.Parallel()
	good := Downstream{Name: "a", Publisher: &fakeSender{}, Topics: []string{"a.#"}}
	for field, change := range map[string]func(*Downstream){
		"Downstreams[1]: Name: \"a\" is taken": func(*Downstream) {},
		"Downstreams[1]: Name: is required":    func(d *Downstream) { d.Name = "" },
		"Publisher: is nil":                    func(d *Downstream) { d.Publisher = nil },
		"Topics: are required":                 func(d *Downstream) { d.Topics = nil },
		"Topics: in \"a*.b\"":                  func(d *Downstream) { d.Topics = []string{"a*.b"} },
		"Rename: has 300 bytes":                func(d *Downstream) { d.Rename = map[string]string{"b": strings.Repeat("x", 300)} },
		"Prefix: has 300 bytes":                func(d *Downstream) { d.Prefix = strings.Repeat("x", 300) },
		"Window: -1 is negative":               func(d *Downstream) { d.Window = -1 },
	} {
		d := good
		change(&d)
		cfg := Config{Downstreams: []Downstream{good, d}}
		if _, err := NewStandalone(memstore.New(nil), nil, cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := NewStandalone(memstore.New(nil), nil, Config{Downstreams: []Downstream{good}}); err != nil {
		t.Error(err)
	}
}

// halfSilent answers nothing on one topic until the context ends.
type halfSilent struct {
	fakeSender
	taken *taken
}

func (s *halfSilent) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	if topic == "dead" {
		s.fakeSender.Send(ctx, topic, msg, done)
		return
	}
	s.taken.Send(ctx, topic, msg, done)
}

func TestARouteThatAnswersNothingHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		for i := range 400 {
			f.Add("dead", fmt.Sprint("dead", i))
			f.Add("live", fmt.Sprint("live", i))
		}
		sender := &halfSilent{fakeSender{silent: true}, newTaken()}
		stop := running(t, relayOn(t, f, &f.Local, sender, Config{Window: 100}))
		time.Sleep(10 * time.Second) // well below SendTimeout
		sender.taken.mu.Lock()
		n := len(sender.taken.topics)
		sender.taken.mu.Unlock()
		if n != 400 {
			t.Errorf("%d of 400 events of the other topic were delivered", n)
		}
		stop()
		sender.pending.Wait()
	})
}
