package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// BenchmarkApply compares a claim with an effect to the plain transaction that a
// worker without an inbox would run, and to one that keeps message IDs by hand.
func BenchmarkApply(b *testing.B) {
	pool := newPool(b, nil)
	store := newStore(b, pool, postgres.Config{})
	ctx := b.Context()
	if _, err := pool.Exec(ctx, "CREATE TABLE effects (name text); CREATE TABLE ids (id uuid PRIMARY KEY)"); err != nil {
		b.Fatal(err)
	}
	r, err := store.Register(ctx, "service/handler", time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	claim := func() inbox.Claim {
		id := uuid.New()
		return inbox.Claim{
			Consumer: r.Consumer, ID: id, Stamp: time.Now(), Digest: [16]byte(id), IdleTimeout: time.Minute, LockTimeout: time.Second,
			Message: &inbox.Message{ID: id, Topic: "topic", Key: "key"},
		}
	}
	known := claim()
	if _, err := store.Apply(ctx, known, effect); err != nil {
		b.Fatal(err)
	}
	apply := func(change func(c *inbox.Claim)) func() error {
		return func() error {
			c := claim()
			change(&c)
			_, err := store.Apply(ctx, c, effect)
			return err
		}
	}
	for _, bench := range []struct {
		name string
		do   func() error
	}{
		{"plain", func() error { return plainTransaction(ctx, pool, nil) }},
		{"by hand", func() error {
			return plainTransaction(ctx, pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO ids VALUES ($1) ON CONFLICT DO NOTHING", uuid.NewString())
				return err
			})
		}},
		{"new", apply(func(*inbox.Claim) {})},
		{"new ordered", apply(func(c *inbox.Claim) { c.Key = c.ID.String() })},
		{"new repeatable read", apply(func(c *inbox.Claim) { c.Isolation = inbox.RepeatableRead })},
		{"new ordered repeatable read", apply(func(c *inbox.Claim) { c.Key, c.Isolation = c.ID.String(), inbox.RepeatableRead })},
		{"duplicate", func() error { _, err := store.Apply(ctx, known, effect); return err }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetParallelism(4)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := bench.do(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// plainTransaction adds an effect in four round trips, or three without first.
func plainTransaction(ctx context.Context, pool *pgxpool.Pool, first func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if first != nil {
			if err := first(tx); err != nil {
				return err
			}
		}
		return effect(ctx, tx)
	})
}
