package main

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"gorm.io/gorm"

	"github.com/boxpair/boxpair/boxpairtest"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
)

func TestStockIsTakenOnceWhereverTheProcessCrashes(t *testing.T) {
	t.Parallel()
	boxpairtest.Explore(t, func(t testing.TB) boxpairtest.Subject {
		db, err := open(t.Context(), testenv.Postgres(t), &gorm.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.drop(context.WithoutCancel(t.Context())) })
		s, err := newService(db)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.stockUp(t.Context(), Stock{Item: "tea", Left: 100}); err != nil {
			t.Fatal(err)
		}
		return boxpairtest.Subject{
			Start: func() (message.NoPublishHandlerFunc, error) {
				s, err := newService(db)
				if err != nil {
					return nil, err
				}
				return s.handler.Consume, nil
			},
			Events: []producer.Event{
				{Topic: topic, Key: "1", Source: "order/1", Version: 1, Payload: []byte(`{"ID": "1", "Item": "tea", "Amount": 2}`)},
				{Topic: topic, Key: "2", Source: "order/2", Version: 1, Payload: []byte(`{"ID": "2", "Item": "tea", "Amount": 3}`)},
			},
			State: func(ctx context.Context) (any, error) { return s.left(ctx, "tea") },
		}
	})
}
