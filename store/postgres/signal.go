package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxpair/boxpair/migrations"
)

// Listen implements [outbox.RelayStore] with LISTEN. Listen opens a connection with [Config.Direct], or
// takes a connection out of the pool, and closes the connection in the end. A pooler in transaction
// mode passes no signals on: set Config.Direct, or poll instead.
func (s *Store) Listen(ctx context.Context, woken func(text string)) error {
	return s.listen(ctx, nil, woken)
}

// ListenWitnessed implements [outbox.Witnesser] with the connection of [Store.Listen], whose session
// also holds an advisory lock. There is no witness behind a pooler.
func (s *Store) ListenWitnessed(ctx context.Context, witnessed func(witness int64), woken func(text string)) error {
	return s.listen(ctx, witnessed, woken)
}

func (s *Store) listen(ctx context.Context, witnessed func(witness int64), woken func(text string)) error {
	conn, err := s.direct(ctx)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if conn == nil {
		return errors.New("listen: postgres.Config.Direct returned no connection")
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	var witness int64
	if witnessed != nil {
		if witness, err = newWitness(ctx, conn); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	if _, err := conn.Exec(ctx, "LISTEN "+migrations.Quote(s.channel)); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if witness != 0 {
		witnessed(witness)
		defer witnessed(0) // before the connection is closed, which takes time
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		woken(n.Payload)
	}
}

// Notify implements [outbox.RelayStore] with NOTIFY, in a transaction of its own: transactions that
// notify commit one after another.
func (s *Store) Notify(ctx context.Context, text string) error {
	if _, err := s.pool.Exec(ctx, "SELECT pg_notify($1, $2)", s.channel, text); err != nil {
		return failed("notify", err)
	}
	return nil
}
