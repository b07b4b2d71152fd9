package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
)

func TestEveryMessageHasALineInTheLogAtLevelDebug(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, store := &logBuffer{}, newFake()
		in, err := consumer.New(store, consumer.Config{Service: "stock", Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		if err != nil {
			t.Fatal(err)
		}
		failures := 1
		h, err := in.Handle("reserve", func(_ context.Context, w *work, _ *message.Message) error {
			time.Sleep(10 * time.Millisecond)
			if w.Event().ID == number(2) && failures > 0 {
				failures--
				return consumer.RetryAfter(time.Second, errors.New("no stock"))
			}
			return nil
		}, consumer.HandlerConfig{Topic: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 1, 2} {
			if err := h.Consume(msg(n)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		if err := in.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(log.String()) {
			if m := regexp.MustCompile(`level=DEBUG msg="message handled" consumer=stock/reserve dispatch_id=(\S+) .*outcome=(\S+) duration=(\S+)`).FindStringSubmatch(line); m != nil {
				got = append(got, m[1][len(m[1])-1:]+" "+m[2]+" "+m[3])
			}
		}
		if want := "2 applied 10ms, 2 duplicate 0s, 3 retrying 10ms, 3 applied 10ms"; strings.Join(got, ", ") != want {
			t.Errorf("got %q, want %q in:\n%s", got, want, log.String())
		}
	})
}

func TestHandledMessagesAreNotLoggedAtLevelInfo(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.consume(msg(1))
	if strings.Contains(r.log.String(), "message handled") {
		t.Errorf("log:\n%s", r.log.String())
	}
}
