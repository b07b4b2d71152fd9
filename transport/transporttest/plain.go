package transporttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// plainTests returns the cases in which the connection works.
func plainTests() []test {
	return []test{
		{Case: Case{
			"stored", "What Publish returns nil for is stored, with its UUID, payload and metadata",
			"committed events are lost, or set aside as altered",
		}, run: stored},
		{Case: Case{
			"odd content", "Any payload and any text in the metadata is stored as it was, or refused with an error",
			"consumers set such events aside as altered",
		}, run: oddContent},
		{Case: Case{
			"order", "Messages of one key are stored in the order in which Publish returned for them",
			"the events of a key change places",
		}, run: inOrder},
		{Case: Case{
			"concurrent", "Publish may be called by many goroutines at once",
			"events are lost or mixed up under load",
		}, run: concurrent},
		{Case: Case{
			"unroutable", "Publishing to a topic that nobody has made is an error, or makes it and stores the message",
			"events vanish where a queue is missing",
		}, run: unroutable},
		{Case: Case{
			"removed topic", "Publishing to a topic that was removed is an error, or makes it again and stores the message",
			"events vanish when a queue or stream is deleted",
		}, run: removedTopic},
		{Case: Case{
			"bad message", "One that is never taken is an error for its call, and the others of a failed batch can be published one by one",
			"one bad event holds up, or loses, its neighbours",
		}, run: badMessage},
		{Case: Case{
			"outcomes", "A transport.Sender reports one outcome for each message, and only what is stored is confirmed",
			"a relay takes what was not stored out of the outbox, or waits for ever",
		}, run: outcomes},
		{Case: Case{
			"close", "Close with messages on their way returns within Bound, so do they, and what they said remains true",
			"a relay that is stopped loses events or hangs",
		}, run: closes},
	}
}

func stored(ctx context.Context, p *probe) (string, error) {
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	messages := append(newMessages(20, "a"), newMessages(20, "b")...)
	if err := p.publish(topic, messages...); err != nil {
		return "", fmt.Errorf("publish: %w", err)
	}
	got, err := p.read(ctx, topic, messages)
	if err != nil {
		return "", err
	}
	there := byID(got)
	for _, msg := range messages {
		if what := differs(msg, there[msg.UUID]); what != "" {
			return "", fmt.Errorf("%s is not stored as it was published", what)
		}
	}
	return "", nil
}

// odd returns messages that a transport may alter on the way.
func odd() map[string]*message.Message {
	with := func(payload []byte, name, value string) *message.Message {
		msg := newMessage("odd")
		if payload != nil {
			msg.Payload = payload
		}
		if name != "" {
			msg.Metadata[name] = value
		}
		return msg
	}
	return map[string]*message.Message{
		"a binary payload":            with([]byte{0, 0xff, '\r', '\n', 0x80}, "", ""),
		"an empty payload":            with([]byte{}, "", ""),
		"metadata beyond ASCII":       with(nil, "name", "Zoë, 東京"),
		"metadata in spaces":          with(nil, "name", "  padded\t"),
		"metadata with line breaks":   with(nil, "name", "one\r\ntwo\n"),
		"empty metadata":              with(nil, "name", ""),
		"a name in capitals":          with(nil, "X_NAME", "value"),
		"a name with a colon":         with(nil, "a: b", "value"),
		"64 KiB of payload":           with([]byte(`"`+strings.Repeat("x", 64<<10)+`"`), "", ""),
		"a kilobyte of metadata text": with(nil, "name", strings.Repeat("x", 1<<10)),
	}
}

func oddContent(ctx context.Context, p *probe) (string, error) {
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	var refused, altered []string
	for what, msg := range odd() {
		if err := p.publish(topic, msg); err != nil {
			refused = append(refused, what)
			continue
		}
		got, err := p.read(ctx, topic, []*message.Message{msg})
		if err != nil {
			return "", fmt.Errorf("%s: %w", what, err)
		}
		if part := differs(msg, byID(got)[msg.UUID]); part != "" {
			altered = append(altered, what)
		}
	}
	note := ""
	if refused != nil {
		note = "refuses " + list(refused)
	}
	if altered != nil {
		return "", fmt.Errorf("alters %s, and says nothing", list(altered))
	}
	return note, nil
}

func inOrder(ctx context.Context, p *probe) (string, error) {
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	messages := newMessages(60, "k")
	for _, msg := range messages[:30] {
		if err := p.publish(topic, msg); err != nil {
			return "", fmt.Errorf("publish: %w", err)
		}
	}
	if err := p.publish(topic, messages[30:]...); err != nil {
		return "", fmt.Errorf("publish a batch: %w", err)
	}
	got, err := p.read(ctx, topic, messages)
	if err != nil {
		return "", err
	}
	next := 0
	for _, msg := range got { // copies may come in between
		if next < len(messages) && msg.UUID == messages[next].UUID {
			next++
		}
	}
	if next < len(messages) {
		return "", fmt.Errorf("message %d of %d of the key is stored before one that was published earlier", next+1, len(messages))
	}
	return "", nil
}

func concurrent(ctx context.Context, p *probe) (string, error) {
	const callers, calls, batch = 8, 10, 3
	var topics [2]string
	for i := range topics {
		var err error
		if topics[i], err = p.topic(ctx); err != nil {
			return "", err
		}
	}
	var sent [callers][]*message.Message
	var errs [callers]error
	var running sync.WaitGroup
	for i := range callers {
		running.Go(func() {
			for range calls {
				messages := newMessages(batch, fmt.Sprint(i))
				if err := p.publish(topics[i%2], messages...); err != nil {
					errs[i] = err
					return
				}
				sent[i] = append(sent[i], messages...)
			}
		})
	}
	running.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return "", fmt.Errorf("publish: %w", err)
	}
	for i := range callers {
		if err := p.kept(ctx, topics[i%2], sent[i]...); err != nil {
			return "", err
		}
	}
	return "", nil
}

// eitherStored publishes to a topic that does not exist.
func eitherStored(ctx context.Context, p *probe, topic string) (string, error) {
	for range 3 { // the publisher may notice only by the first attempt
		msg := newMessage("unroutable")
		err := p.publish(topic, msg)
		switch {
		case errors.Is(err, errLate):
			return "", err
		case err != nil:
			continue
		}
		if err := p.kept(ctx, topic, msg); err != nil {
			return "", err
		}
		return "makes the topic", nil
	}
	return "an error", nil
}

func unroutable(ctx context.Context, p *probe) (string, error) {
	return eitherStored(ctx, p, newTopic())
}

func removedTopic(ctx context.Context, p *probe) (string, error) {
	if p.Remove == nil {
		return "", notRun{"Target.Remove is nil"}
	}
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	msg := newMessage("removed")
	if err := p.publish(topic, msg); err != nil {
		return "", fmt.Errorf("publish: %w", err)
	}
	if err := p.kept(ctx, topic, msg); err != nil {
		return "", err
	}
	if err := p.Remove(ctx, topic); err != nil {
		return "", fmt.Errorf("remove: %w", err)
	}
	return eitherStored(ctx, p, topic)
}

// badMessage treats a failed batch as a relay does.
func badMessage(ctx context.Context, p *probe) (string, error) {
	if p.Bad == nil {
		return "", notRun{"Target.Bad is nil"}
	}
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	before, bad, after := newMessage("before"), p.Bad(), newMessage("after")
	switch err := p.publish(topic, before, bad, after); {
	case err == nil:
		return "", errors.New("a batch with a message that is never taken is no error")
	case errors.Is(err, errLate):
		return "", err
	}
	for _, msg := range []*message.Message{before, bad, after, bad} {
		switch err := p.publish(topic, msg); {
		case errors.Is(err, errLate):
			return "", err
		case msg == bad && err == nil:
			return "", errors.New("a message that is never taken is no error when it comes alone")
		case msg != bad && err != nil: // an exception may have cost the connection
			if _, err := p.works(ctx, topic); err != nil {
				return "", fmt.Errorf("after a message that is never taken, the others are refused: %w", err)
			}
			if err := p.publish(topic, msg); err != nil {
				return "", fmt.Errorf("a message beside one that is never taken is refused: %w", err)
			}
		}
	}
	if _, err := p.works(ctx, topic); err != nil {
		return "", fmt.Errorf("after a message that is never taken: %w", err)
	}
	return "", p.kept(ctx, topic, before, after)
}

func outcomes(ctx context.Context, p *probe) (string, error) {
	sender, ok := p.publisher.(transport.Sender)
	if !ok {
		return "", notRun{"it is no transport.Sender: a relay narrows down what failed"}
	}
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	lost := newTopic()
	ctx, cancel := context.WithTimeout(ctx, p.Bound)
	defer cancel()
	type outcome struct {
		topic string
		msg   *message.Message
		transport.Result
	}
	const messages = 100
	outcomes := make(chan outcome, 2*messages)
	for i := range messages {
		to := topic
		if i%10 == 3 {
			to = lost
		}
		msg := newMessage(uuid.NewString())
		sender.Send(ctx, to, msg, func(r transport.Result) { outcomes <- outcome{to, msg, r} })
	}
	var confirmed []*message.Message
	for i := range messages {
		select {
		case o := <-outcomes:
			if (o.Err == nil) != (o.Outcome == transport.Confirmed) {
				return "", fmt.Errorf("an outcome is %v with the error %w", o.Outcome, o.Err)
			}
			if o.Outcome != transport.Confirmed {
				continue
			}
			if o.topic == lost {
				if err := p.kept(ctx, lost, o.msg); err != nil {
					return "", fmt.Errorf("a topic that nobody has made: %w", err)
				}
				continue
			}
			confirmed = append(confirmed, o.msg)
		case <-time.After(p.Bound + time.Second):
			return "", fmt.Errorf("%d of %d messages have no outcome", messages-i, messages)
		}
	}
	if err := p.kept(ctx, topic, confirmed...); err != nil {
		return "", err
	}
	if len(outcomes) > 0 {
		return "", errors.New("a message has more than one outcome")
	}
	if len(confirmed) == 0 {
		return "", errors.New("nothing was confirmed")
	}
	return "", nil
}

// closes closes the publisher while several goroutines publish.
func closes(ctx context.Context, p *probe) (string, error) {
	topic, err := p.topic(ctx)
	if err != nil {
		return "", err
	}
	load := p.load(topic)
	if err := load.until(ctx, 30); err != nil {
		return "", err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.close() // an error means that some messages may not be stored, as the errors of the calls say
	}()
	late := !wait(ended, p.Bound)
	confirmed, err := load.stop()
	switch {
	case late:
		return "", fmt.Errorf("%w within %v: Close", errLate, p.Bound)
	case err != nil:
		return "", err
	}
	msg := newMessage("closed")
	if err := p.publish(topic, msg); err == nil {
		confirmed = append(confirmed, msg) // Publish may work after Close, but then the message must be stored
	} else if errors.Is(err, errLate) {
		return "", fmt.Errorf("after Close: %w", err)
	}
	return "", p.kept(ctx, topic, confirmed...)
}
