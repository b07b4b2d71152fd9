package doctor_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/transport/amqp"
)

// A deployment, or a job of every night, looks at the databases of two services and at their broker.
func ExampleRun() {
	_ = func(ctx context.Context, orders, stock *pgxpool.Pool) error {
		findings, err := doctor.Run(ctx, doctor.Config{
			Outboxes:   []doctor.Database{{Name: "orders", Pool: orders, Connections: 20}},
			Inboxes:    []doctor.Database{{Name: "stock", Pool: stock, Connections: 20}},
			Management: amqp.Management{URL: "http://monitor:password@rabbit:15672"},
		})
		for _, f := range findings {
			fmt.Println(f)
		}
		return err
	}
}
