package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

var errCut = errors.New("cut off by the test")

func TestMain(m *testing.M) {
	// Goroutines of a bubble that run timers at the same time crash the race detector (go.dev/issue/78156), in one
	// of ten runs of this package: with one processor they cannot.
	runtime.GOMAXPROCS(1)
	goleak.VerifyTestMain(m)
}

// fakeSender confirms after a while, unless a test says otherwise.
type fakeSender struct {
	mu      sync.Mutex
	took    time.Duration
	answer  func(topic string, msg *message.Message) transport.Result
	silent  bool // answers only when the context ends
	sent    []*message.Message
	at      []time.Time
	pending sync.WaitGroup
}

func (f *fakeSender) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	f.mu.Lock()
	f.sent, f.at = append(f.sent, msg), append(f.at, time.Now())
	res := transport.Result{Outcome: transport.Confirmed}
	if f.answer != nil {
		res = f.answer(topic, msg)
	}
	silent := f.silent
	f.mu.Unlock()
	f.pending.Go(func() {
		if silent {
			<-ctx.Done()
			res = transport.Result{Outcome: transport.Unavailable, Err: ctx.Err()}
		} else if pace.Sleep(ctx, f.took) != nil {
			res = transport.Result{Outcome: transport.Unavailable, Err: ctx.Err()}
		}
		done(res)
	})
}

func (f *fakeSender) Route(topic string) string { return topic }

func (f *fakeSender) Publish(string, ...*message.Message) error {
	return errors.New("not called")
}

func (f *fakeSender) Close() error { return nil }

func (f *fakeSender) messages() []*message.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sent)
}

// realStore is a fake store on the bubble's clock.
func realStore() *memstore.Store {
	origin := time.Now()
	return memstore.New(func() time.Duration { return time.Since(origin) })
}

func relayOn(t *testing.T, f outbox.RelayStore, signal *wakeup.Signal, publisher message.Publisher, cfg Config) *Relay {
	t.Helper()
	r, err := newRelay(f, wakes{signal: signal, id: "local"}, publisher, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// running runs a relay and returns the function that stops it.
func running(t *testing.T, r *Relay) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	}
}

func TestRunDeliversUntilItIsToldToStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, sender := realStore(), &fakeSender{took: time.Millisecond}
		r := relayOn(t, f, &f.Local, sender, Config{Window: 20})
		stop := running(t, r)
		for i := range 500 {
			f.Add("topic", fmt.Sprint("key", i%50))
		}
		time.Sleep(2 * time.Second)
		h := r.Health()
		if !h.Running || h.Shards != idgen.Shards || h.Relays != 1 || h.LastMark.IsZero() || h.LastConfirm.IsZero() {
			t.Errorf("health: %+v", h)
		}
		stop()
		if queued, _ := f.Left(); queued != 0 || len(sender.messages()) != 500 {
			t.Errorf("%d left, %d sent", queued, len(sender.messages()))
		}
		for i, s := range f.Shards {
			if s.Owner != "" {
				t.Errorf("shard %d was not given back", i)
			}
		}
		if r.Health().Running {
			t.Error("health says that it runs")
		}
		stop = running(t, r) // it can run again
		f.Add("topic", "key")
		time.Sleep(time.Second)
		stop()
		if queued, _ := f.Left(); queued != 0 {
			t.Error("the second run delivered nothing")
		}
	})
}

func TestACommitInTheProcessWakesAnIdleRelayAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, sender := realStore(), &fakeSender{}
		stop := running(t, relayOn(t, f, &f.Local, sender, Config{PollMax: time.Hour}))
		time.Sleep(30 * time.Minute)
		began := time.Now()
		f.Add("topic", "key")
		synctest.Wait()
		if sent := sender.messages(); len(sent) != 1 || sender.at[0].Sub(began) > time.Millisecond {
			t.Errorf("%d sent", len(sent))
		}
		stop()
	})
}

func TestAnIdleRelayPollsSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		stop := running(t, relayOn(t, f, &f.Local, &fakeSender{}, Config{PollOnly: true}))
		time.Sleep(10 * time.Second)
		f.Mu.Lock()
		before := f.Calls["Fetch"]
		f.Mu.Unlock()
		time.Sleep(time.Minute)
		f.Mu.Lock()
		polls, dues := f.Calls["Fetch"]-before, f.Calls["Due"]
		f.Mu.Unlock()
		if polls < 100 || polls > 130 || dues > 4 {
			t.Errorf("%d polls in a minute, %d looks for what is due", polls, dues)
		}
		stop()
	})
}

func TestRunEndsThoughTheTransportDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, sender := realStore(), &fakeSender{silent: true}
		seq := f.Add("topic", "key")
		stop := running(t, relayOn(t, f, &f.Local, sender, Config{ShutdownTimeout: 3 * time.Second}))
		time.Sleep(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("the stop took %v", took)
		}
		for i, s := range f.Shards {
			if (s.Owner != "") != (i == f.Log[seq].Shard) {
				t.Errorf("shard %d is owned by %q", i, s.Owner)
			}
		}
		sender.pending.Wait()
	})
}

func TestASendThatIsNotAnsweredIsRepeatedAfterItsTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, sender := realStore(), &fakeSender{silent: true}
		f.Add("topic", "key")
		stop := running(t, relayOn(t, f, &f.Local, sender, Config{SendTimeout: 2 * time.Second}))
		time.Sleep(time.Second)
		sender.mu.Lock()
		sender.silent = false
		sender.mu.Unlock()
		time.Sleep(3 * time.Second)
		if n := len(sender.messages()); n != 2 {
			t.Errorf("%d sends", n)
		}
		stop()
		if queued, _ := f.Left(); queued != 0 || len(f.Failures) != 0 {
			t.Errorf("%d left, %d attempts counted", queued, len(f.Failures))
		}
	})
}

func TestARelayRunsOnceAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		r := relayOn(t, f, &f.Local, &fakeSender{}, Config{})
		stop := running(t, r)
		time.Sleep(time.Second)
		if err := r.Run(t.Context()); err == nil {
			t.Error("it ran twice")
		}
		if _, err := r.RunOnce(t.Context()); err == nil {
			t.Error("it ran twice")
		}
		stop()
	})
}

func TestRunOnceDoesWhatIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		bad := f.Add("topic", "bad")
		follower := f.Add("topic", "bad")
		for i := range 100 {
			f.Add("topic", fmt.Sprint("key", i%10))
			f.Add("sick", fmt.Sprint("sick", i%10))
		}
		badID := f.ID(bad).String()
		sender := &fakeSender{took: time.Millisecond, answer: func(topic string, msg *message.Message) transport.Result {
			if msg.UUID == badID || topic == "sick" {
				return transport.Result{Outcome: transport.Returned, Err: errCut}
			}
			return transport.Result{Outcome: transport.Confirmed}
		}}
		r := relayOn(t, f, &f.Local, sender, Config{Backoff: Backoff{Initial: time.Hour}})
		report, err := r.RunOnce(t.Context())
		if err != nil || report.Delivered != 100 || report.Failed != 1 || report.Dead != 0 || report.Left == 0 {
			t.Errorf("%+v, %v", report, err)
		}
		if f.State(bad) != outbox.Retrying || f.State(follower) != outbox.Following {
			t.Errorf("states %q and %q", f.State(bad), f.State(follower))
		}
		for i, s := range f.Shards {
			if s.Owner != "" {
				t.Errorf("shard %d was not given back", i)
			}
		}
		sender.answer = nil
		time.Sleep(2 * time.Hour)
		report, err = r.RunOnce(t.Context())
		if err != nil || report.Delivered != 102 || report.Left != 0 {
			t.Errorf("%+v, %v", report, err)
		}
		if report, err = r.RunOnce(t.Context()); err != nil || report != (Report{}) {
			t.Errorf("with nothing to do: %+v, %v", report, err)
		}
	})
}

func TestRunOnceReturnsWhatTheDatabaseSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		down := errors.New("database is down")
		for _, method := range []string{"Heartbeat", "Acquire", "Heal", "Blocked", "Fetch", "Mark"} {
			f.Add("topic", "key")
			f.Fail = func(m string) error {
				if m == method {
					return down
				}
				return nil
			}
			r := relayOn(t, f, &f.Local, &fakeSender{}, Config{ShutdownTimeout: time.Second})
			if _, err := r.RunOnce(t.Context()); !errors.Is(err, down) {
				t.Errorf("%s fails: %v", method, err)
			}
			f.Fail = nil
			time.Sleep(time.Minute)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errCut)
		r := relayOn(t, f, &f.Local, &fakeSender{}, Config{})
		if _, err := r.RunOnce(ctx); !errors.Is(err, errCut) {
			t.Errorf("with an ended context: %v", err)
		}
	})
}

func TestMessagesOfATakeOverSayThatTheyAreRedelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, sender := realStore(), &fakeSender{}
		f.Add("topic", "key")
		for i := range f.Shards {
			f.Shards[i] = memstore.Shard{Owner: "dead", Epoch: 1}
		}
		time.Sleep(time.Second)
		stop := running(t, relayOn(t, f, &f.Local, sender, Config{}))
		time.Sleep(time.Second)
		f.Shards[0].RewindTo = 0
		stop()
		if sent := sender.messages(); len(sent) != 1 || !transport.Redelivered(sent[0]) {
			t.Error("not marked as redelivered")
		}
	})
}

// listened is a store with a signal between processes that breaks.
type listened struct {
	*memstore.Store
	listens chan func(from string)
	broken  chan error
}

func (l *listened) Listen(ctx context.Context, woken func(string)) error {
	l.listens <- woken
	select {
	case err := <-l.broken:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestARelayListensAgainAfterTheSignalBroke(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &listened{realStore(), make(chan func(string), 10), make(chan error)}
		sender := &fakeSender{}
		stop := running(t, relayOn(t, l, &wakeup.Signal{}, sender, Config{PollMax: time.Hour}))
		<-l.listens
		l.broken <- errors.New("connection lost")
		woken := <-l.listens
		time.Sleep(10 * time.Minute)
		l.Add("topic", "key")
		woken("other")
		synctest.Wait()
		if n := len(sender.messages()); n != 1 {
			t.Errorf("%d sent", n)
		}
		stop()
		stop = running(t, relayOn(t, l, &wakeup.Signal{}, sender, Config{PollOnly: true}))
		time.Sleep(time.Minute)
		stop()
		if len(l.listens) != 0 {
			t.Error("a relay that polls only has listened")
		}
	})
}

// A commit in a relay's process wakes it, and reaches it once more as a signal. Polling twice for
// each commit would delay every second poll, since wake-ups bring at most one poll per PollMin on
// average.
func TestARelayLooksOnceForACommitThatItHearsOfTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &listened{realStore(), make(chan func(string), 1), make(chan error)}
		sender, local := &fakeSender{}, &wakeup.Signal{}
		stop := running(t, relayOn(t, l, local, sender, Config{PollMin: 5 * time.Millisecond}))
		told := <-l.listens
		time.Sleep(time.Minute)
		for i := range 500 {
			l.Add("topic", "key-"+strconv.Itoa(i))
			local.Send(wakeup.All)
			synctest.Wait()
			if n := len(sender.messages()); n != i+1 {
				t.Fatalf("%d sent at once, want %d", n, i+1)
			}
			told("local")
			time.Sleep(5 * time.Millisecond)
		}
		stop()
	})
}

// ranged is a store that remembers which shards were read.
type ranged struct {
	listened
	mu     sync.Mutex
	shards []int
}

func (r *ranged) Fetch(ctx context.Context, ranges []outbox.Range) ([]outbox.Queued, error) {
	r.mu.Lock()
	for _, rng := range ranges {
		r.shards = append(r.shards, rng.Shard)
	}
	r.mu.Unlock()
	return r.listened.Fetch(ctx, ranges)
}

func (r *ranged) read() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	shards := r.shards
	r.shards = nil
	return shards
}

// A wake-up that names no shards, or is of an unknown format, has all of them read.
func TestWakeUpFromElsewhereHasTheShardsReadThatItNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ranged{listened: listened{realStore(), make(chan func(string), 1), make(chan error)}}
		sender := &fakeSender{}
		stop := running(t, relayOn(t, l, &wakeup.Signal{}, sender, Config{PollMax: time.Hour}))
		told := <-l.listens
		time.Sleep(4*time.Hour + time.Minute) // no lap and no poll is near
		l.read()
		for i := range 20 {
			key := "key-" + strconv.Itoa(i)
			shard := idgen.Shard(key, uuid.Nil)
			for _, there := range []bool{true, false} {
				if there {
					l.Add("topic", key)
				}
				told(wakeup.Wakeup{Shards: 1 << shard}.Text("another"))
				synctest.Wait()
				if n := len(sender.messages()); n != i+1 {
					t.Fatalf("%d sent, want %d", n, i+1)
				}
				if there {
					if read := l.read(); len(read) == 0 || slices.ContainsFunc(read, func(n int) bool { return n != shard }) {
						t.Fatalf("shards %d were read for an event in %d", read, shard)
					}
				}
				time.Sleep(time.Second)
				if read := l.read(); !there && !slices.Equal(read, []int{shard}) {
					t.Fatalf("shards %d were read for nothing in %d", read, shard)
				}
			}
		}
		told(wakeup.All.Text("local")) // it has heard of it before
		time.Sleep(time.Second)
		if n := len(l.read()); n != 0 {
			t.Errorf("%d shards were read for commits of this process", n)
		}
		for _, text := range []string{"", "another", "2 0000000000000001 0 another", "1 0000000000000000 0 another", "1 x 0 another", "1 1"} {
			told(text)
			time.Sleep(time.Second)
			all := l.read()
			slices.Sort(all)
			if n := len(slices.Compact(all)); n != idgen.Shards {
				t.Errorf("%q has %d shards read", text, n)
			}
		}
		stop()
	})
}
