package relay

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// TestEventOfATopicThatMayHaveNobodyCountsAsDelivered, while an event of another topic waits.
func TestEventOfATopicThatMayHaveNobodyCountsAsDelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := realStore()
		for i := range 30 {
			f.Add("audit.login", fmt.Sprint(i))
		}
		f.Add("order.placed", "order")
		var log bytes.Buffer
		sender := &fakeSender{answer: func(string, *message.Message) transport.Result {
			return transport.Result{Outcome: transport.Returned, Err: errors.New("nobody")}
		}}
		r := relayOn(t, f, &f.Local, sender, Config{DropUnroutable: []string{"audit.#"}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := running(t, r)
		time.Sleep(10 * time.Second)
		for i := range 70 {
			f.Add("audit.login", fmt.Sprint(30+i))
		}
		time.Sleep(2 * time.Hour)
		f.Add("audit.login", "last")
		time.Sleep(10 * time.Second)
		stop()
		sender.pending.Wait()
		var left []string
		for seq := range f.Parked {
			left = append(left, f.Log[seq].Topic)
		}
		for _, shard := range f.Queue {
			for seq := range shard {
				left = append(left, f.Log[seq].Topic)
			}
		}
		if len(left) != 1 || left[0] != "order.placed" {
			t.Errorf("these wait: %q", left)
		}
		if n := strings.Count(log.String(), "nobody listens to are dropped"); n != 2 {
			t.Errorf("%d records", n)
		}
		for _, says := range []string{"level=INFO", "topic=audit.login events=1 error=nobody", "topic=audit.login events=100 error=nobody"} {
			if !strings.Contains(log.String(), says) {
				t.Errorf("the log does not say %s:\n%s", says, log.String())
			}
		}
	})
}

func TestOnlyAReturnedEventIsDropped(t *testing.T) {
	t.Parallel()
	d := dropping{patterns: []string{"a"}, log: slog.New(slog.DiscardHandler)}
	for _, outcome := range []transport.Outcome{transport.Confirmed, transport.Refused, transport.Unavailable, transport.Invalid} {
		if res := d.judge("a", 1, transport.Result{Outcome: outcome}); res.Outcome != outcome {
			t.Errorf("%v becomes %v", outcome, res.Outcome)
		}
	}
	for topic, want := range map[string]transport.Outcome{"a": transport.Confirmed, "b": transport.Returned} {
		if res := d.judge(topic, 1, transport.Result{Outcome: transport.Returned}); res.Outcome != want {
			t.Errorf("topic %s: %v", topic, res.Outcome)
		}
	}
	for i := range 3 * maxDropTopics {
		d.patterns = []string{"#"}
		d.judge(fmt.Sprint(i), 1, transport.Result{Outcome: transport.Returned})
	}
	if len(d.topics) > maxDropTopics {
		t.Errorf("%d topics are remembered", len(d.topics))
	}
}

func TestPatternOfADroppedTopicIsChecked(t *testing.T) {
	t.Parallel()
	_, err := NewStandalone(realStore(), &fakeSender{}, Config{DropUnroutable: []string{"a*"}})
	if err == nil || !strings.Contains(err.Error(), "DropUnroutable: in \"a*\"") {
		t.Errorf("it says %v", err)
	}
}
