package effects_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/consumer/internal/consumertest"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

var errHandler = errors.New("stock is counted")

// provider carries effects out, in files that outlive this process: one for each key, with a line
// for each call.
type provider struct{ dir string }

type (
	charge  struct{ Order string }
	receipt struct{ Number string }
)

func (p provider) charge(key uuid.UUID, c charge) (receipt, error) {
	f, err := os.OpenFile(filepath.Join(p.dir, key.String()), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return receipt{}, err
	}
	defer func() { _ = f.Close() }()
	_, err = fmt.Fprintln(f, c.Order)
	return receipt{Number: key.String()}, err
}

// calls returns how often each key was asked for.
func (p provider) calls(t *testing.T) map[string]int {
	t.Helper()
	files, err := os.ReadDir(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	calls := make(map[string]int)
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(p.dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		calls[f.Name()] = strings.Count(string(text), "\n")
	}
	return calls
}

// wantCharges checks that the message was charged under its own key, once, with so many calls.
func (p provider) wantCharges(t *testing.T, id uuid.UUID, calls int) {
	t.Helper()
	got := p.calls(t)
	if calls == 0 && len(got) == 0 {
		return
	}
	if key := effects.Key("stock/pay", id).String(); len(got) != 1 || got[key] != calls {
		t.Errorf("calls by key are %v, want %d of %s", got, calls, key)
	}
}

// paying is the effect of the tests: it has an effect in the database and writes an event in both
// transactions.
func paying[TX any](db *consumertest.Database[TX], p provider) effects.Effect[TX, charge, receipt] {
	return effects.Effect[TX, charge, receipt]{
		Prepare: func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) (charge, error) {
			_, err := w.Write(ctx, producer.Event{Topic: "paying"})
			return charge{Order: w.Event().ID.String()}, err
		},
		Do: func(_ context.Context, key uuid.UUID, c charge) (receipt, error) { return p.charge(key, c) },
		Finish: func(ctx context.Context, w *consumer.Work[TX], c charge, r receipt) error {
			if w.Event().ID.String() != r.Number || w.Event().CorrelationID != "conversation" {
				return fmt.Errorf("event is %+v", w.Event())
			}
			err := db.Exec(ctx, w.DB(), fmt.Sprintf(`INSERT INTO effects (seq, id) VALUES (1, '%s')`, c.Order))
			if err != nil {
				return err
			}
			_, err = w.Write(ctx, producer.Event{Topic: "paid"})
			return err
		},
	}
}

// pay returns a handler under the name "pay" of a new inbox on a store.
func pay[TX any](t *testing.T, store inbox.Store[TX], db *consumertest.Database[TX], e effects.Effect[TX, charge, receipt], cfg effects.Config) (*consumer.Inbox[TX], *effects.Handler[TX]) {
	t.Helper()
	inbox, err := consumer.New(store, consumer.Config{Service: "stock"}, consumer.WithOutbox(db.Outbox))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Handler.Topic = "orders"
	h, err := effects.Handle(inbox, "pay", e, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return inbox, h
}

// endLeases has leases end and backoffs be over, as time does.
func endLeases[TX any](t *testing.T, db *consumertest.Database[TX]) {
	t.Helper()
	lease, due := `now() - interval '1 second'`, `now()`
	if !db.Snapshots {
		lease, due = `1`, `1`
	}
	for column, value := range map[string]string{"lease_until": lease, "due_at": due} {
		err := db.Execute(t, fmt.Sprintf(`UPDATE %s SET %s = %s WHERE %[2]s IS NOT NULL`, db.Table("inbox_effects"), column, value))
		if err != nil {
			t.Fatal(err)
		}
	}
}

func ledgerOf[TX any](t *testing.T, inbox *consumer.Inbox[TX]) *effects.Ledger[TX] {
	t.Helper()
	ledger, err := effects.New(inbox)
	if err != nil {
		t.Fatal(err)
	}
	return ledger
}

// wantEffect checks the only effect in the ledger.
func wantEffect[TX any](t *testing.T, in *consumer.Inbox[TX], state inbox.EffectState) inbox.Effect {
	t.Helper()
	list, err := ledgerOf(t, in).List(t.Context(), inbox.EffectFilter{})
	if err != nil || len(list) != 1 || list[0].State != state {
		t.Fatalf("effects are %+v, %v; want one that is %s", list, err, state)
	}
	return list[0]
}

// wantReason checks the end of the history of a message: what an operator did last, and why.
func wantReason[TX any](t *testing.T, inbox *consumer.Inbox[TX], id uuid.UUID, outcome, reason string) {
	t.Helper()
	history, err := inbox.Attempts(t.Context(), id, 0)
	if n := len(history); err != nil || n == 0 || history[n-1].Outcome != outcome || history[n-1].Error != reason {
		t.Errorf("history is %+v, %v; want it to end with %s: %s", history, err, outcome, reason)
	}
}
