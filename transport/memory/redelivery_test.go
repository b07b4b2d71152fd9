package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

func TestNackedMessageComesBackAfterAGrowingDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const shortest, longest = 10 * time.Millisecond, 100 * time.Millisecond
		b := newBroker(t, memory.Config{MinRedelivery: shortest, MaxRedelivery: longest})
		messages := subscribe(t, b.Subscriber("stock"), "orders")
		results := send(b, "orders", keyed("k"))
		msg := <-messages
		if transport.Redelivered(msg) {
			t.Error("first delivery says that it may have been started before")
		}
		want, jittered := shortest, false
		for i := range 8 {
			nacked := time.Now()
			msg.Nack()
			msg = <-messages
			if waited := time.Since(nacked); waited < want/2 || waited > want {
				t.Errorf("nack %d: came back after %v, want between %v and %v", i+1, waited, want/2, want)
			} else if waited < want {
				jittered = true
			}
			if !transport.Redelivered(msg) {
				t.Errorf("nack %d: does not say that it may have been started before", i+1)
			}
			want = min(2*want, longest)
		}
		if !jittered {
			t.Error("messages that failed together come back together")
		}
		msg.Ack()
		if r := <-results; r.Outcome != transport.Confirmed {
			t.Errorf("outcome %v, want confirmed", r.Outcome)
		}
	})
}

func TestNacksOfAMinuteAreFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		messages := subscribeCtx(t, ctx, b.Subscriber("stock"), "orders")
		send(b, "orders", keyed("k"))
		nacks := 0
		for msg := range messages {
			msg.Nack()
			nacks++
		}
		// Between half a second and a second each, after the first few.
		if nacks < 60 || nacks > 130 {
			t.Errorf("%d nacks in a minute", nacks)
		}
	})
}

func TestNackedMessageHoldsItsKeyAndNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{InFlight: 1, MinRedelivery: time.Hour})
		messages := subscribe(t, b.Subscriber("stock"), "orders")
		first, second, other := keyed("k"), keyed("k"), keyed("other")
		send(b, "orders", first)
		send(b, "orders", second)
		begin := time.Now()
		(<-messages).Nack()
		send(b, "orders", other)
		if msg := <-messages; msg.UUID != other.UUID || time.Since(begin) > time.Minute {
			t.Fatalf("got %s after %v, want the other key at once", msg.UUID, time.Since(begin))
		} else {
			msg.Ack()
		}
		for _, want := range []string{first.UUID, second.UUID} {
			msg := <-messages
			if msg.UUID != want {
				t.Fatal("order of the key is lost")
			}
			msg.Ack()
		}
		if waited := time.Since(begin); waited < 30*time.Minute || waited > time.Hour {
			t.Errorf("redelivered after %v", waited)
		}
	})
}

func TestDelayedMessageIsGivenUpWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{MinRedelivery: time.Hour})
		messages := subscribe(t, b.Subscriber("stock"), "orders")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		results := sendCtx(ctx, b, "orders", keyed("k"))
		second := keyed("k")
		send(b, "orders", second)
		(<-messages).Nack()
		if r := <-results; r.Outcome != transport.Unavailable {
			t.Errorf("outcome %v, want unavailable", r.Outcome)
		}
		msg := <-messages
		if msg.UUID != second.UUID || time.Since(begin) != time.Minute {
			t.Errorf("got %s after %v, want the next of the key when the first was given up", msg.UUID, time.Since(begin))
		}
		msg.Ack()
	})
}

func TestStartOfAnEarlierProcessIsPassedOn(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	msg := keyed("k")
	msg.SetContext(transport.WithRedelivered(context.Background()))
	send(b, "orders", msg)
	if !transport.Redelivered(receive(t, messages)) {
		t.Error("the relay's word is lost")
	}
}
