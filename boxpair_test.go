package boxpair_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/memory"
)

func TestMain(m *testing.M) {
	// Of a router that could not start, Watermill waits for handlers that never ran.
	const waits = "github.com/ThreeDotsLabs/watermill/message.(*Router).watchAllHandlersStopped.func1"
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(waits))
}

// diary notes what parts do, in order.
type diary struct {
	mu    sync.Mutex
	notes []string
}

func (d *diary) note(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notes = append(d.notes, what)
}

// part runs until its context ends, or until its end.
type part struct {
	*diary
	name string
	end  chan error // with its error
}

func (d *diary) part(name string) *part { return &part{diary: d, name: name, end: make(chan error, 1)} }

func (p *part) Run(ctx context.Context) error {
	p.note(p.name + " runs")
	defer p.note(p.name + " has stopped")
	select {
	case err := <-p.end:
		return err
	case <-ctx.Done():
		return nil
	}
}

// group returns a group of parts that keep a diary, with the output of its logger.
func (d *diary) group() (boxpair.Group, *bytes.Buffer) {
	var log bytes.Buffer
	return boxpair.Group{
		Outbox: d.part("outbox"), Janitor: d.part("janitor"), Relay: d.part("relay"), Inbox: d.part("inbox"),
		Others: []boxpair.Part{d.part("other")}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}, &log
}

// idle subscribes to nothing, and notes when a subscription begins and when it ends.
type idle struct{ *diary }

func (s idle) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.note("router runs")
	out := make(chan *message.Message)
	go func() {
		<-ctx.Done()
		s.note("router has stopped")
		close(out)
	}()
	return out, nil
}

func (s idle) Close() error { return nil }

func newRouter(t *testing.T, s message.Subscriber) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router.AddConsumerHandler("handler", "topic", s, func(*message.Message) error { return nil })
	return router
}

func TestPartsOfAGroupStartAndStopInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		group, log := d.group()
		group.Router = newRouter(t, idle{d})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- group.Run(ctx) }()
		synctest.Wait()
		started := slices.Clone(d.notes)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if at := slices.Index(started, "router runs"); len(started) != 6 || at < 0 || at > slices.Index(started, "relay runs") {
			t.Errorf("started: %v", started)
		}
		want := []string{"router has stopped", "inbox has stopped", "relay has stopped", "other has stopped", "janitor has stopped", "outbox has stopped"}
		if got := d.notes[len(started):]; !slices.Equal(got, want) {
			t.Errorf("stopped: %v, want %v", got, want)
		}
		for _, says := range []string{"[outbox janitor router inbox relay others[0]]", "service has stopped"} {
			if !strings.Contains(log.String(), says) {
				t.Errorf("the log does not say %q: %s", says, log)
			}
		}
	})
}

func TestPartThatEndsStopsTheGroup(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, cause := range map[string]error{"with an error": failed, "without one": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &diary{}
				group, log := d.group()
				group.Router = newRouter(t, idle{d})
				done := make(chan error, 1)
				go func() { done <- group.Run(t.Context()) }()
				synctest.Wait()
				group.Relay.(*part).end <- cause
				err := <-done
				if err == nil || !strings.Contains(err.Error(), "relay: ") || cause != nil && !errors.Is(err, cause) {
					t.Errorf("error %v", err)
				}
				if len(d.notes) != 12 || !strings.Contains(log.String(), "part=relay") {
					t.Errorf("%v, log %s", d.notes, log)
				}
			})
		})
	}
}

// refusing is a subscriber that no handler can use.
type refusing struct{ idle }

func (s refusing) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errors.New("no such queue")
}

func TestRouterThatCannotStartStopsTheGroup(t *testing.T) {
	t.Parallel()
	d := &diary{}
	group, _ := d.group()
	group.Router = newRouter(t, refusing{idle{d}})
	err := group.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "router: ") || !strings.Contains(err.Error(), "no such queue") {
		t.Errorf("error %v", err)
	}
	if slices.Contains(d.notes, "relay runs") || !slices.Contains(d.notes, "outbox has stopped") {
		t.Errorf("%v", d.notes)
	}
}

func TestWhatIsMissingInAGroupIsSaid(t *testing.T) {
	t.Parallel()
	d := &diary{}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	group, log := d.group()
	if err := group.Run(over); err != nil || !strings.Contains(log.String(), "no router") {
		t.Errorf("error %v, log %s", err, log)
	}
	group, log = d.group()
	group.Inbox, group.Router = nil, newRouter(t, idle{d})
	if err := group.Run(over); err != nil || !strings.Contains(log.String(), "no inbox") {
		t.Errorf("error %v, log %s", err, log)
	}
	for want, bad := range map[string]boxpair.Group{
		"no part":   {},
		"NoJanitor": {Janitor: d.part("janitor"), NoJanitor: true},
		"Others[1]": {Others: []boxpair.Part{d.part("other"), nil}},
	} {
		if err := bad.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

// TestGroupDeliversAndRemoves: the parts of README are all there is to a service, and the janitor is
// one of them.
func TestGroupDeliversAndRemoves(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]bool{"with a janitor": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.group.NoJanitor = without
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.group.Run(ctx) }()
			err := s.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
				_, err := w.Write(ctx, producer.Event{Topic: "order.placed", Source: "order/42", Version: 1})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-s.handled:
			case <-time.After(30 * time.Second):
				t.Error("the event was not handled")
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if strings.Contains(s.log.String(), "janitor") == without {
				t.Errorf("the log is %s", &s.log)
			}
		})
	}
}

// service is a service on SQLite.
type service struct {
	group   boxpair.Group
	outbox  *producer.Outbox[*sql.Tx]
	handled chan struct{}
	log     bytes.Buffer
}

func newService(t *testing.T) *service {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "shop.db"))
	ok(err)
	t.Cleanup(func() { ok(db.Close()) })
	_, err = sqlite.Migrate(t.Context(), db, sqlite.Config{})
	ok(err)
	store, err := sqlite.New(db, sqlite.Config{})
	ok(err)
	broker, err := memory.New(memory.Config{})
	ok(err)
	t.Cleanup(func() { ok(broker.Close()) })
	s := &service{handled: make(chan struct{}, 1)}
	s.outbox, err = producer.New(store, producer.Config{Name: "shop"})
	ok(err)
	r, err := relay.New(s.outbox, broker, relay.Config{})
	ok(err)
	inbox, err := consumer.New(store, consumer.Config{Service: "shop"}, consumer.WithOutbox(s.outbox))
	ok(err)
	ship, err := inbox.Handle("ship", func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error {
		s.handled <- struct{}{}
		return nil
	}, consumer.HandlerConfig{})
	ok(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	ok(err)
	router.AddConsumerHandler("ship", "order.placed", broker.Subscriber("ship"), ship.Consume)
	s.group = boxpair.Group{Outbox: s.outbox, Relay: r, Inbox: inbox, Router: router, Logger: slog.New(slog.NewTextHandler(&s.log, nil))}
	return s
}
