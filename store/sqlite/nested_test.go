package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

func TestMessageWithinAHandlerIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	in, err := consumer.New(newStore(t, db), consumer.Config{Service: "service"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := in.Handle("other", func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { return nil },
		consumer.HandlerConfig{Topic: "topic"})
	if err != nil {
		t.Fatal(err)
	}
	var refused, waited error
	outer, err := in.Handle("outer", func(ctx context.Context, _ *consumer.Work[*sql.Tx], _ *message.Message) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		refused = other.Consume(message.NewMessageWithContext(ctx, uuid.NewString(), nil))
		waited = ctx.Err()
		return nil
	}, consumer.HandlerConfig{Topic: "topic"})
	if err != nil {
		t.Fatal(err)
	}
	if err := outer.Consume(message.NewMessage(uuid.NewString(), nil)); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(refused, inbox.ErrNested) || !errors.Is(refused, sqlite.ErrNested) || waited != nil {
		t.Errorf("refused with %v, waited until %v", refused, waited)
	}
}
