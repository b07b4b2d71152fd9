package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// plainPublisher is a Watermill publisher like any other.
type plainPublisher struct {
	mu      sync.Mutex
	publish func(topic string, msgs []*message.Message) error
	batches []int
	passed  map[string]int
	calls   int
	most    int
}

func (p *plainPublisher) Publish(topic string, msgs ...*message.Message) error {
	p.mu.Lock()
	p.batches = append(p.batches, len(msgs))
	p.calls++
	p.most = max(p.most, p.calls)
	publish := p.publish
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.calls--
	}()
	if publish != nil {
		if err := publish(topic, msgs); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.passed == nil {
		p.passed = make(map[string]int)
	}
	for _, msg := range msgs {
		p.passed[msg.UUID]++
	}
	return nil
}

func (p *plainPublisher) Close() error { return nil }

func TestAnyPublisherIsGivenBatchesOfOneTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		p := &plainPublisher{publish: func(topic string, msgs []*message.Message) error {
			time.Sleep(5 * time.Millisecond)
			for _, msg := range msgs {
				if msg.Metadata.Get(transport.MetaKey)[:1] != topic {
					t.Errorf("a message of %s in a batch of %s", msg.Metadata.Get(transport.MetaKey), topic)
				}
			}
			return nil
		}}
		for i := range 400 {
			f.Add("a", fmt.Sprint("a", i))
			f.Add("b", fmt.Sprint("b", i))
		}
		report, err := relayOn(t, f, &f.Local, p, Config{Publishers: 2}).RunOnce(t.Context())
		if err != nil || report.Delivered != 800 || len(p.passed) != 800 {
			t.Errorf("%+v, %v", report, err)
		}
		if len(p.batches) > 60 || p.most > 2 {
			t.Errorf("%d calls of Publish, %d at once", len(p.batches), p.most)
		}
	})
}

func TestABatchThatFailedIsNarrowedDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		var bad int64
		for i := range 50 {
			seq := f.Add("topic", fmt.Sprint("key", i))
			if i == 20 {
				bad = seq
			}
		}
		badID := f.ID(bad).String()
		p := &plainPublisher{publish: func(_ string, msgs []*message.Message) error {
			for _, msg := range msgs {
				if msg.UUID == badID {
					return errors.New("one of them is bad")
				}
			}
			return nil
		}}
		report, err := relayOn(t, f, &f.Local, p, Config{Backoff: Backoff{Initial: time.Hour}}).RunOnce(t.Context())
		if err != nil || report.Delivered != 49 || report.Failed != 1 {
			t.Errorf("%+v, %v", report, err)
		}
		if n := len(f.Attempts(bad)); n != 1 || f.Attempts(bad)[0].Outcome != transport.Refused {
			t.Errorf("%d attempts of the bad one", n)
		}
	})
}

func TestAPublishThatDoesNotReturnHoldsItsPlaceAndNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		hang := make(chan struct{})
		p := &plainPublisher{publish: func(topic string, _ []*message.Message) error {
			if topic == "stuck" {
				<-hang
			}
			return nil
		}}
		f.Add("stuck", "a")
		stop := running(t, relayOn(t, f, &f.Local, p, Config{Publishers: 2, SendTimeout: time.Second, ShutdownTimeout: time.Second}))
		time.Sleep(100 * time.Millisecond)
		for i := range 20 {
			f.Add("topic", fmt.Sprint("key", i))
		}
		time.Sleep(900 * time.Millisecond)
		if queued, _ := f.Left(); queued != 1 {
			t.Errorf("%d left", queued)
		}
		time.Sleep(20 * time.Second)
		p.mu.Lock()
		if p.calls > 2 || len(f.Failures) != 0 {
			t.Errorf("%d calls under way, %d attempts counted", p.calls, len(f.Failures))
		}
		p.mu.Unlock()
		stop() // gives up waiting
		close(hang)
		synctest.Wait()
	})
}

// says is an error that knows its outcome.
type says transport.Outcome

func (s says) Error() string              { return "it says so" }
func (s says) Outcome() transport.Outcome { return transport.Outcome(s) }

func TestAnErrorOfPublishHasAnOutcome(t *testing.T) {
	t.Parallel()
	for want, err := range map[transport.Outcome]error{
		transport.Confirmed:   nil,
		transport.Refused:     errors.New("any"),
		transport.Unavailable: fmt.Errorf("publish: %w", context.DeadlineExceeded),
		transport.Invalid:     fmt.Errorf("publish: %w", says(transport.Invalid)),
		transport.Returned:    says(transport.Returned),
	} {
		if got := resultOf(err); got.Outcome != want || (got.Err == nil) != (want == transport.Confirmed) {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
	if got := resultOf(says(transport.Confirmed)); got.Outcome != transport.Refused {
		t.Errorf("an error that says confirmed is %v", got.Outcome)
	}
}

func TestAPublisherThatPanicsRefuses(t *testing.T) {
	t.Parallel()
	p := &plainPublisher{publish: func(string, []*message.Message) error { panic("payload") }}
	s := newBatchSender(p, 1)
	got := make(chan transport.Result)
	s.Send(t.Context(), "topic", message.NewMessage("id", nil), func(r transport.Result) { got <- r })
	if r := <-got; r.Outcome != transport.Refused || r.Err.Error() != "publisher panicked with a string" {
		t.Errorf("%v", r)
	}
	if !s.wait(t.Context()) {
		t.Error("the place is still taken")
	}
}
