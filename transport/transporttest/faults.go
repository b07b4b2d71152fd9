package transporttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// faultTests returns the cases in which the connection or the broker fails.
func faultTests() []test {
	return []test{
		{Case: Case{
			"cut", "What Publish returned nil for is stored, however often the connection breaks meanwhile",
			"events are lost when a connection breaks",
		}, run: cutUnderLoad, line: true},
		{Case: Case{
			"recovers", "After the connection was refused for a while, Publish works again by itself",
			"a relay stands still until somebody restarts it",
		}, run: recovers, line: true},
		{Case: Case{
			"deadline", "If the broker answers nothing, Publish returns an error within Bound",
			"a relay runs out of places for calls, and stands still",
		}, run: deadline},
		{Case: Case{
			"crash", "What Publish returned nil for is stored after a crash of the broker, and Publish works again",
			"events are lost when the broker crashes",
		}, run: crash, alone: true},
	}
}

// load is a group of goroutines that publish.
type load struct {
	stopping chan struct{}
	running  sync.WaitGroup
	changed  chan struct{} // capacity 1

	mu        sync.Mutex
	confirmed []*message.Message
	late      error
	failed    error
}

// between is the pause of each publishing goroutine between two calls.
const between = 4 * time.Millisecond

// load publishes to topic until it is stopped.
func (p *probe) load(topic string) *load {
	const callers = 4
	l := &load{stopping: make(chan struct{}), changed: make(chan struct{}, 1)}
	for i := range callers {
		l.running.Go(func() {
			for {
				select {
				case <-l.stopping:
					return
				default:
				}
				messages := newMessages(1+i%3, fmt.Sprint(i))
				err := p.publish(topic, messages...)
				if l.note(messages, err) {
					return
				}
				wait(l.stopping, between)
			}
		})
	}
	return l
}

// note records the outcome of a call, and tells whether the goroutine has to stop.
func (l *load) note(messages []*message.Message, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.confirmed = append(l.confirmed, messages...)
		select {
		case l.changed <- struct{}{}:
		default:
		}
	case errors.Is(err, errLate):
		l.late = err
		return true
	default:
		l.failed = err
	}
	return false
}

// until waits until the given number of further messages is confirmed.
func (l *load) until(ctx context.Context, more int) error {
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	l.mu.Lock()
	target := len(l.confirmed) + more
	l.mu.Unlock()
	for {
		l.mu.Lock()
		n, failed := len(l.confirmed), l.failed
		l.mu.Unlock()
		if n >= target {
			return nil
		}
		select {
		case <-l.changed:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), l.end())
		case <-timer.C:
			return errors.Join(errors.New("nothing is confirmed for a minute"), failed, l.end())
		}
	}
}

func (l *load) end() error {
	_, err := l.stop()
	return err
}

// stop ends the load and returns the confirmed messages, and an error if a call did not return.
func (l *load) stop() ([]*message.Message, error) {
	close(l.stopping)
	l.running.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.confirmed), l.late
}

// cutUnderLoad cuts the line several times while several goroutines publish.
func cutUnderLoad(ctx context.Context, p *probe) (string, error) {
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	l := p.load(topic)
	if err := l.until(ctx, 20); err != nil {
		return "", err
	}
	for range 5 {
		p.line.cut()
		pause(ctx, 20*time.Millisecond)
		p.line.heal()
		pause(ctx, 300*time.Millisecond)
	}
	confirmed, err := l.stop()
	if err != nil {
		return "", err
	}
	return "", p.kept(ctx, topic, confirmed...)
}

func recovers(ctx context.Context, p *probe) (string, error) {
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	if _, err := p.works(ctx, topic); err != nil {
		return "", err
	}
	p.line.cut()
	msg := newMessage("cut")
	switch err := p.publish(topic, msg); {
	case err == nil:
		return "", errors.New("Publish returns nil while there is no connection")
	case errors.Is(err, errLate):
		return "", fmt.Errorf("while there is no connection: %w", err)
	}
	pause(ctx, 2*time.Second) // long enough for a client to give up
	p.line.heal()
	begin := time.Now()
	again, err := p.works(ctx, topic)
	if err != nil {
		return "", err
	}
	return "after " + seconds(time.Since(begin)), p.kept(ctx, topic, again)
}

// deadline publishes a message whose context ends soon, while the broker is silent.
func deadline(ctx context.Context, p *probe) (string, error) {
	const soon = time.Second
	if p.line == nil && p.Silence == nil {
		return "", notRun{"neither Target.Address nor Target.Silence is given"}
	}
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	first, err := p.works(ctx, topic)
	if err != nil {
		return "", err
	}
	restore, err := p.silence(topic)
	if err != nil {
		return "", err
	}
	defer restore()
	bounded, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	msg := newMessage("silent")
	msg.SetContext(bounded)
	begin := time.Now()
	err = p.publish(topic, msg)
	took := time.Since(begin)
	switch {
	case err == nil:
		return "", errors.New("Publish returns nil while the broker answers nothing")
	case errors.Is(err, errLate):
		return "", err
	}
	restore()
	again, err := p.works(ctx, topic)
	if err != nil {
		return "", err
	}
	note := "after " + seconds(took) + ", of its own"
	if took < 2*soon {
		note = "with the message's context"
	}
	return note, p.kept(ctx, topic, first, again)
}

// silence makes the broker silent until restore is called.
func (p *probe) silence(topic string) (restore func(), err error) {
	if p.line == nil {
		if restore, err = p.Silence(topic); err != nil {
			return nil, fmt.Errorf("silence: %w", err)
		}
		return sync.OnceFunc(restore), nil
	}
	p.line.silence()
	return sync.OnceFunc(p.line.heal), nil
}

// topicAge is how old the topic is at a crash. RabbitMQ 3.10 does not recover a queue that was
// declared less than about half a second before, which is not the publisher's fault.
const topicAge = 3 * time.Second

// crash kills the broker while several goroutines publish.
func crash(ctx context.Context, p *probe) (string, error) {
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	l := p.load(topic)
	if err := l.until(ctx, 50); err != nil {
		return "", err
	}
	pause(ctx, topicAge)
	restarted := p.Restart(ctx)
	confirmed, err := l.stop()
	if err := errors.Join(restarted, err); err != nil {
		return "", fmt.Errorf("restart: %w", err)
	}
	again, err := p.works(ctx, topic)
	if err != nil {
		return "", err
	}
	return "", p.kept(ctx, topic, append(confirmed, again)...)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.0f s", d.Seconds()) }

// list joins sorted names with commas.
func list(names []string) string {
	slices.Sort(names)
	return strings.Join(names, ", ")
}
