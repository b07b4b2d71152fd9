package chain

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// childVariable holds what a child process is to do, as JSON.
const childVariable = "BOXPAIR_TEST_CHILD"

func TestMain(m *testing.M) {
	text := os.Getenv(childVariable)
	if text == "" {
		goleak.VerifyTestMain(m)
		return
	}
	var c child
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.run()
	}
	if err != nil {
		c.say("error: " + err.Error())
		os.Exit(1)
	}
}

// child is a process of its own: a relay, a producer or a consumer. It says where it is
// on its standard output, and ends when its standard input does, which is when
// its parent is gone.
type child struct {
	Role     string // relay, producer or consumer
	Database string
	AMQP     string
	Topic    string
	LeaseTTL time.Duration
	Listens  bool   // a relay, so it has a witness
	Direct   string // the database past a pooler, on which a relay listens; "" is Database
	// Partitions of the topic, for a consumer.
	Partitions int
	// Point is where the child waits until it is killed: written or committed for a
	// producer; effects or committed for a consumer. At marking, a relay waits until
	// it is told to go on.
	Point string
}

var saying sync.Mutex

// say tells the parent something, on a line of its own.
func (c *child) say(line string) {
	saying.Lock()
	defer saying.Unlock()
	_, _ = fmt.Fprintln(os.Stdout, line)
}

// at waits to be killed, if here is the place.
func (c *child) at(here string) {
	if c.Point == here {
		c.say("at " + here)
		select {}
	}
}

func (c *child) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	goOn := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		close(goOn)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	pool, err := pgxpool.New(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	var cfg postgres.Config
	if c.Direct != "" {
		cfg.Direct = func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, c.Direct) }
	}
	db, err := postgresOn(pool, cfg)
	if err != nil {
		return err
	}
	outbox, err := producer.New(db.store, producer.Config{Name: "shop"})
	if err != nil {
		return err
	}
	switch c.Role {
	case "relay":
		return c.relay(ctx, db.store, goOn)
	case "producer":
		return c.produce(ctx, db, outbox)
	case "consumer":
		return c.consume(ctx, db, outbox)
	}
	return errors.New("no such role")
}

func (c *child) relay(ctx context.Context, store outbox.RelayStore, goOn <-chan struct{}) error {
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurablePubSub(c.AMQP, "")})
	if err != nil {
		return err
	}
	if c.Point != "" {
		store = &slowStore{store, c, goOn}
	}
	relay, err := relay.NewStandalone(store, publisher, relay.Config{
		LeaseTTL: c.LeaseTTL, PollOnly: !c.Listens, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil)),
	})
	if err != nil {
		return err
	}
	c.say("started")
	return relay.Run(ctx)
}

// slowStore is a store whose first mark is on its way until the child is told to go on.
type slowStore struct {
	outbox.RelayStore
	child *child
	goOn  <-chan struct{}
}

func (s *slowStore) Mark(ctx context.Context, relay string, marks []outbox.Mark) ([]int, error) {
	s.child.say("at marking")
	<-s.goOn
	lost, err := s.RelayStore.Mark(context.WithoutCancel(ctx), relay, marks)
	s.child.say(fmt.Sprintf("marked: lost %d shards, %v", len(lost), err))
	return lost, err
}

func (c *child) produce(ctx context.Context, db *database[pgx.Tx], outbox *producer.Outbox[pgx.Tx]) error {
	err := outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		if err := db.order(ctx, w, c.Topic, "killed"); err != nil {
			return err
		}
		c.at("written")
		return nil
	})
	c.at("committed")
	return err
}

func (c *child) consume(ctx context.Context, db *database[pgx.Tx], outbox *producer.Outbox[pgx.Tx]) error {
	inbox, err := consumer.New(db.store, consumer.Config{Service: "stock"}, consumer.WithOutbox(outbox))
	if err != nil {
		return err
	}
	h, err := inbox.Handle("apply", func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
		if err := db.effect(ctx, w, "stock"); err != nil {
			return err
		}
		if _, err := w.Write(ctx, producer.Event{Topic: c.Topic + "_reserved", Key: w.Event().Key}); err != nil {
			return err
		}
		c.at("effects")
		return nil
	}, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: c.Partitions > 0}})
	if err != nil {
		return err
	}
	sub, err := amqp.NewSubscriber(partitioned(c.AMQP, "stock", c.Partitions))
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("apply", c.Topic, sub, func(msg *message.Message) error {
		err := h.Consume(msg)
		c.at("committed")
		return err
	})
	return router.Run(ctx)
}

// process is a running child.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	mu    sync.Mutex
	lines []string
	done  chan struct{}
}

// startChild starts a child process, which is killed at the end of the test.
func startChild(t *testing.T, c child) *process {
	t.Helper()
	c.AMQP = testenv.AMQPURL(t)
	text, err := json.Marshal(c)
	ok(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	p.stdin, err = cmd.StdinPipe()
	ok(t, err)
	stdout, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	go func() {
		defer close(p.done)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// said counts the lines that hold text.
func (p *process) said(text string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// waits waits until the child has said text n times.
func (p *process) waits(text string, n int) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("a child that says %q %d times", text, n), func() bool {
		if p.said("error: ") > 0 {
			p.t.Fatalf("child: %s", strings.Join(p.lines, "\n"))
		}
		return p.said(text) >= n
	})
}

// goOn tells a relay that waits to go on.
func (p *process) goOn() {
	p.t.Helper()
	_, err := io.WriteString(p.stdin, "\n")
	ok(p.t, err)
}

// kill ends the child as kill -9 does, and waits for its end.
func (p *process) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	_ = p.cmd.Wait()
}
