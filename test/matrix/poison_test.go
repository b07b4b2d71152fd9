package matrix

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/invariant"
	"github.com/boxpair/boxpair/test/faults/system"
)

const uuidHeader = "_watermill_message_uuid"

// zoo returns a header of every AMQP type.
func zoo(id string) amqp091.Table {
	return amqp091.Table{
		uuidHeader: id, "bool": true, "int8": int8(-1), "uint8": uint8(1), "int16": int16(-2), "int32": int32(-3), "int64": int64(-4),
		"float32": float32(1.5), "float64": 2.5, "decimal": amqp091.Decimal{Scale: 2, Value: 314}, "string": "text",
		"bytes": []byte{0, 1, 255}, "time": time.Unix(1, 0), "nothing": nil, "array": []any{int32(1), "two", nil},
		"table":            amqp091.Table{"deep": amqp091.Table{"deeper": []any{true}}},
		"x-death":          []any{amqp091.Table{"count": int64(7), "reason": "rejected", "queue": "another"}},
		"x-delivery-count": int64(19), "invalid": "\xff\xfe", "nul": "a\x00b",
		strings.Repeat("k", 255): strings.Repeat("v", 10_000),
	}
}

// poison returns malformed messages. Each message must be set aside.
func poison() map[string]amqp091.Publishing {
	id := func() amqp091.Table { return amqp091.Table{uuidHeader: uuid.NewString()} }
	body := []byte("no order")
	return map[string]amqp091.Publishing{
		"headers of every type":    {Headers: zoo(uuid.NewString()), Body: body},
		"no headers":               {Body: body},
		"empty ID":                 {Headers: amqp091.Table{uuidHeader: ""}, Body: body},
		"ID that is a number":      {Headers: amqp091.Table{uuidHeader: int64(7)}, Body: body},
		"ID that is no UUID":       {Headers: amqp091.Table{uuidHeader: "order-7"}, Body: body},
		"nil UUID":                 {Headers: amqp091.Table{uuidHeader: uuid.Nil.String()}, Body: body},
		"ID of a long string":      {Headers: amqp091.Table{uuidHeader: strings.Repeat("x", 5000)}, Body: body},
		"invalid UTF-8":            {Headers: id(), Body: []byte{0xff, 0xfe, 0}},
		"no body":                  {Headers: id()},
		"large body":               {Headers: id(), Body: bytes.Repeat([]byte{'x'}, 4<<20)},
		"long properties":          {Headers: id(), MessageId: strings.Repeat("m", 255), CorrelationId: strings.Repeat("c", 255), Type: strings.Repeat("t", 255), Body: body},
		"expired digest and stamp": {Headers: amqp091.Table{uuidHeader: uuid.NewString(), "boxpair-digest": "zz", "boxpair-stamp": "never"}, Body: body},
	}
}

// Poison among good messages is set aside for an operator, in the first attempts or after all of
// them, and delays no other message.
func TestPoisonIsSetAsideAndTheRestIsApplied(t *testing.T) {
	t.Parallel()
	for name, message := range poison() {
		cell(t, name+"/id-read", calm, system.Config{}, func(t *testing.T, r *rig) {
			ok(t, r.start(child.Consumer, "").Ready(r.within()))
			ok(t, r.Put("stock", message))
			r.Injected(1)
			r.start(child.Relay, "")
			r.start(child.Producer, "")
			r.eventually("poison that is set aside", func() (bool, error) {
				n, err := system.Number(r.ctx, r.InboxPool(), `SELECT count(*) FROM boxpair.inbox_parked WHERE state NOT IN ('retrying', 'following')`)
				return n == 1, err
			})
			state, err := r.Finish(r.ctx, r.needed)
			ok(t, err)
			withoutPoison(t, state, 1)
			r.check(state)
		})
	}
}

// withoutPoison removes from the messages set aside those that no order has sent: want messages.
func withoutPoison(t *testing.T, state *invariant.State, want int) {
	t.Helper()
	orders := make(map[uuid.UUID]bool)
	for _, o := range state.Orders {
		orders[o.Dispatch] = true
	}
	c := &state.Consumers[0]
	var aside, claims []uuid.UUID
	for _, id := range c.Aside {
		if orders[id] {
			aside = append(aside, id)
		}
	}
	for _, id := range c.Claims {
		if orders[id] {
			claims = append(claims, id)
		}
	}
	if n := len(c.Aside) - len(aside); n != want {
		t.Errorf("%d messages of poison are set aside, not %d", n, want)
	}
	c.Aside, c.Claims = aside, claims
}

// Events that can never be published become dead, and the later events of their keys go on.
func TestEventsThatCannotBeSentAreDeadAndDelayNobody(t *testing.T) {
	t.Parallel()
	cell(t, "before-park", calm, system.Config{}, func(t *testing.T, r *rig) {
		r.Injected(1)
		r.chain("", "", func(c *child.Config) { c.Huge = 7 })
		if state := r.finish(); len(state.Dead) != orders/7 {
			t.Errorf("%d events are dead", len(state.Dead))
		}
	})
}

// Two services read the same events in one process: an event applied by one service is new to the
// other.
func TestTwoServicesInOneProcessApplyEachEvent(t *testing.T) {
	t.Parallel()
	for _, p := range []fault.Point{fault.BeforeClaimCommit, fault.BeforeWindow} {
		cell(t, string(p), calm, system.Config{Services: []string{"stock", "mail"}}, func(t *testing.T, r *rig) {
			first := r.chain(child.Consumer, string(p)+"=kill@8")[child.Consumer]
			ok(t, first.Killed(r.within()))
			r.Injected(0)
			r.start(child.Consumer, "")
			if state := r.finish(); len(state.Consumers) != 2 || len(state.Consumers[1].Effects) != orders {
				t.Errorf("%d consumers", len(state.Consumers))
			}
		})
	}
}

// Two processes place the same orders at once, as after a request that was sent twice.
func TestOrdersPlacedByTwoProcessesAtOnceHaveOneEvent(t *testing.T) {
	t.Parallel()
	cell(t, "before-commit", calm, system.Config{}, func(t *testing.T, r *rig) {
		r.chain("", "")
		r.start(child.Producer, "", named("second"))
		r.Injected(1)
		if state := r.finish(); len(state.Orders) != orders {
			t.Errorf("%d orders", len(state.Orders))
		}
	})
}

// A consumer dies again and again with one message. The broker must not drop the message, and other
// messages must not suffer.
func TestCrashLoopOfAConsumerGivesNothingUpUnseen(t *testing.T) {
	t.Parallel()
	cell(t, "before-handler", calm, system.Config{}, func(t *testing.T, r *rig) {
		r.start(child.Relay, "")
		r.start(child.Producer, "")
		const crashes = 8
		for range crashes {
			ok(t, r.start(child.Consumer, "before-handler=kill").Killed(r.within()))
		}
		r.Injected(0)
		r.start(child.Consumer, "")
		r.needed.Faults = crashes
		state := r.finish()
		c := state.Consumers[0]
		if len(c.Effects)+len(c.Aside) != orders {
			t.Errorf("%d applied and %d set aside", len(c.Effects), len(c.Aside))
		}
	})
}

// The tables are migrated again and again while all processes work.
func TestMigrationWhileServicesWorkDisturbsNobody(t *testing.T) {
	t.Parallel()
	cell(t, "before-commit", calm, system.Config{}, func(t *testing.T, r *rig) {
		r.chain("", "", func(c *child.Config) { c.Pause = slow })
		for range 10 {
			for _, db := range []string{r.OutboxDB, r.InboxDB} {
				pool, err := pgxpool.New(r.ctx, r.Servers.Postgres.URL(db))
				ok(t, err)
				_, err = postgres.Migrate(r.ctx, pool, postgres.Config{})
				pool.Close()
				ok(t, err)
			}
		}
		r.Injected(1)
		r.finish()
	})
}
