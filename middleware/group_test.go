package middleware_test

import (
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
)

func TestPlainHandlersShareTransactions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	transactions := make(map[*sql.Tx]int)
	r.add(plainHandler{
		Name: "reserve", PublishTopic: "reserved", NoKey: true,
		Handler: consumer.HandlerConfig{Timeout: 2 * time.Minute, Group: consumer.GroupConfig{Size: 8, Wait: time.Minute}, Retry: consumer.RetryConfig{QuickAttempts: 1}},
	}, func(msg *message.Message) ([]*message.Message, error) {
		if err := effect(msg); err != nil {
			return nil, err
		}
		w, _ := middleware.WorkFrom[*sql.Tx](msg.Context())
		if msg.UUID == number(3).String() {
			return nil, errors.New("error of a handler")
		}
		mu.Lock()
		transactions[w.DB()]++ // of those that go well: the one that fails may come last
		mu.Unlock()
		return message.Messages{message.NewMessage("", []byte("reserved"))}, nil
	})
	stop := r.run()
	var all sync.WaitGroup
	for n := range 8 {
		m := order(int64(n))
		delete(m.Metadata, "boxpair-key") // otherwise the transport hands out messages one at a time
		delete(m.Metadata, "boxpair-digest")
		all.Go(func() { r.publish(m) })
	}
	all.Wait()
	stop()
	r.wantNumber(`SELECT count(*) FROM effects`, 7)
	r.wantNumber(`SELECT count(DISTINCT id) FROM effects`, 7)
	r.wantNumber(`SELECT count(*) FROM boxpair_outbox_events`, 7)
	r.wantNumber(`SELECT count(*) FROM boxpair_inbox_parked WHERE state = 'retrying'`, 1)
	most := 0
	for _, n := range transactions {
		most = max(most, n)
	}
	if most != 7 {
		t.Errorf("at most %d messages shared a transaction, want 7", most)
	}
}
