package transporttest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPublisherAsItShouldBePasses(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	Test(t, b.target(sends(func(done func()) { done() })))
}

// wrapped is a client of which something is otherwise.
type wrapped struct {
	*client

	publish func(c *client, topic string, messages []*message.Message) error
	close   func(c *client) error
}

func (w *wrapped) Publish(topic string, messages ...*message.Message) error {
	if w.publish == nil {
		return w.client.Publish(topic, messages...)
	}
	return w.publish(w.client, topic, messages)
}

func (w *wrapped) Close() error {
	if w.close == nil {
		return w.client.Close()
	}
	return w.close(w.client)
}

// flawed returns publishers that are wrong, and the case that must find each. Calls that hang return at the end.
func flawed(end <-chan struct{}) map[string]func(address string) message.Publisher {
	publishing := func(publish func(c *client, topic string, messages []*message.Message) error) func(string) message.Publisher {
		return func(address string) message.Publisher {
			return &wrapped{client: &client{address: address}, publish: publish}
		}
	}
	return map[string]func(address string) message.Publisher{
		"stored, metadata dropped": publishing(func(c *client, topic string, messages []*message.Message) error {
			for _, msg := range messages {
				bare := message.NewMessage(msg.UUID, msg.Payload)
				if err := c.Publish(topic, bare); err != nil {
					return err
				}
			}
			return nil
		}),
		"odd content, spaces trimmed": publishing(func(c *client, topic string, messages []*message.Message) error {
			for _, msg := range messages {
				for name, value := range msg.Metadata {
					msg = msg.Copy()
					msg.Metadata[name] = strings.TrimSpace(value)
				}
				if err := c.Publish(topic, msg); err != nil {
					return err
				}
			}
			return nil
		}),
		"order, batches backwards": publishing(func(c *client, topic string, messages []*message.Message) error {
			messages = slices.Clone(messages)
			slices.Reverse(messages)
			return c.Publish(topic, messages...)
		}),
		"unroutable, nil": publishing(func(c *client, topic string, messages []*message.Message) error {
			if err := c.Publish(topic, messages...); err != nil && err.Error() != "no topic\n" {
				return err
			}
			return nil
		}),
		"bad message, only the last one's error": publishing(func(c *client, topic string, messages []*message.Message) error {
			var last error
			for _, msg := range messages {
				last = c.Publish(topic, msg)
			}
			return last
		}),
		"concurrent, one at a time or not at all": notSafe,
		"removed topic, known for ever":           remembers,
		"outcomes, twice":                         sends(func(done func()) { done(); done() }),
		"outcomes, never":                         sends(func(func()) {}),
		"close, hangs": func(address string) message.Publisher {
			return &wrapped{client: &client{address: address}, close: func(*client) error { <-end; return nil }}
		},
		"close, what is on its way is dropped": func(address string) message.Publisher {
			return &wrapped{client: &client{address: address}, publish: func(c *client, topic string, messages []*message.Message) error {
				if err := c.Publish(topic, messages...); err != nil && err.Error() != "closed" {
					return err
				}
				return nil
			}}
		},
		"cut, written is taken for stored": publishing(writesOnly),
		"recovers, once and for all down":  givesUp,
		"deadline, waits for ever":         func(address string) message.Publisher { return &client{address: address, noLimit: true} },
		"deadline, nil": publishing(func(c *client, topic string, messages []*message.Message) error {
			if err := c.Publish(topic, messages...); err != nil && messages[0].Context().Err() == nil {
				return err
			}
			return nil
		}),
	}
}

func notSafe(address string) message.Publisher {
	var mu sync.Mutex
	return &wrapped{client: &client{address: address}, publish: func(c *client, topic string, messages []*message.Message) error {
		if !mu.TryLock() {
			return nil
		}
		defer mu.Unlock()
		return c.Publish(topic, messages...)
	}}
}

func remembers(address string) message.Publisher {
	var known sync.Map
	return &wrapped{client: &client{address: address}, publish: func(c *client, topic string, messages []*message.Message) error {
		err := c.Publish(topic, messages...)
		if _, is := known.Load(topic); is && err != nil && err.Error() == "no topic\n" {
			return nil
		}
		if err == nil {
			known.Store(topic, true)
		}
		return err
	}}
}

// writesOnly lets the answers go unread, as a publisher without confirms does.
func writesOnly(c *client, topic string, messages []*message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, msg := range messages {
		if err := c.write(topic, msg); err != nil {
			return err
		}
	}
	return nil
}

func givesUp(address string) message.Publisher {
	var mu sync.Mutex
	var gone error
	return &wrapped{client: &client{address: address}, publish: func(c *client, topic string, messages []*message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if gone == nil {
			gone = c.Publish(topic, messages...)
		}
		return gone
	}}
}

// sender reports outcomes, in a way.
type sender struct {
	*client

	how func(done func())
}

func sends(how func(done func())) func(string) message.Publisher {
	return func(address string) message.Publisher { return &sender{&client{address: address}, how} }
}

func (s *sender) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	r := transport.Result{Outcome: transport.Confirmed}
	if err := s.one(ctx, topic, msg); err != nil {
		r = transport.Result{Outcome: transport.Refused, Err: err}
	}
	s.how(func() { done(r) })
}

func (s *sender) Route(topic string) string { return topic }

func TestEveryFlawIsFound(t *testing.T) {
	t.Parallel()
	for name, open := range flawed(t.Context().Done()) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := newBroker(t).target(open)
			target.Restart = nil
			target.Bound, target.Recovery = 2*time.Second, 2*time.Second
			want, _, _ := strings.Cut(name, ",")
			expect(t, target, want)
		})
	}
}

// expect runs one case, which must fail.
func expect(t *testing.T, target *Target, name string) {
	t.Helper()
	complete, err := target.complete()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range tests() {
		if test.Name == name {
			r := run(t.Context(), complete, &test)
			if r.Verdict != Failed {
				t.Errorf("%v, %s", r.Verdict, r.Detail)
			}
			t.Log(r.Detail)
			return
		}
	}
	t.Fatalf("there is no case %q", name)
}

func TestBrokerThatConfirmsFromMemoryIsFound(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.volatile = true
	target := b.target(func(address string) message.Publisher { return &client{address: address} })
	target.Bound = 2 * time.Second
	expect(t, target, "crash")
}

func TestEveryCaseFindsAFlaw(t *testing.T) {
	t.Parallel()
	found := map[string]bool{"crash": true} // see TestBrokerThatConfirmsFromMemoryIsFound
	for name := range flawed(t.Context().Done()) {
		short, _, _ := strings.Cut(name, ",")
		found[short] = true
	}
	for _, c := range Cases() {
		if !found[c.Name] {
			t.Errorf("no publisher is planted for %q", c.Name)
		}
	}
}

func TestReportTellsWhatWasNotRun(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	full := b.target(func(address string) message.Publisher { return &client{address: address} })
	report, err := Check(t.Context(), &Target{Address: full.Address, Open: full.Open, Prepare: full.Prepare, Stored: full.Stored})
	if err != nil {
		t.Fatal(err)
	}
	var skipped []string
	for i := range report {
		if report[i].Verdict == NotRun {
			skipped = append(skipped, report[i].Name)
		}
	}
	if want := []string{"removed topic", "bad message", "outcomes", "crash"}; !slices.Equal(skipped, want) || !report.Safe() {
		t.Errorf("not run: %q, failed: %q", skipped, report.Failed())
	}
	if report.Failed() != nil || len(report) != len(Cases()) {
		t.Errorf("%d results, failed %q", len(report), report.Failed())
	}
}

func TestTargetErrorsNameTheField(t *testing.T) {
	t.Parallel()
	_, err := Check(t.Context(), &Target{Address: "a", Silence: func(string) (func(), error) { return nil, nil }, Bound: -1, Recovery: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"Open: is nil", "Prepare: is nil", "Stored: is nil", "Silence: ", "Bound: -1ns", "Recovery: -1ns"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q is not in %v", field, err)
		}
	}
}

func TestFailuresOfTheTargetAreReported(t *testing.T) {
	t.Parallel()
	full := newBroker(t).target(func(address string) message.Publisher { return &client{address: address} })
	for what, change := range map[string]func(*Target){
		"open: no": func(x *Target) {
			x.Open = func(context.Context, string) (message.Publisher, error) { return nil, errNo }
		},
		"prepare: no": func(x *Target) { x.Prepare = func(context.Context, string) error { return errNo } },
		"read what is stored: no": func(x *Target) {
			x.Bound = 4 * time.Second // it is waited out
			x.Stored = func(context.Context, string) ([]*message.Message, error) { return nil, errNo }
		},
	} {
		target := *full
		change(&target)
		complete, err := target.complete()
		if err != nil {
			t.Fatal(err)
		}
		if r := run(t.Context(), complete, &tests()[0]); r.Verdict != Failed || r.Detail != what {
			t.Errorf("%v, %q, want %q", r.Verdict, r.Detail, what)
		}
	}
}

var errNo = errors.New("no")
