package brokers

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/internal/testenv/service"
	"github.com/boxpair/boxpair/transport/transporttest"
)

// tables reads what watermill-sql has in its tables.
type tables struct {
	server *service.Postgres
	schema wsql.DefaultPostgreSQLSchema
	pool   *pgxpool.Pool
}

func newTable(t *testing.T) *tables {
	t.Helper()
	x := &tables{server: testenv.PrivatePostgres(t), schema: wsql.DefaultPostgreSQLSchema{
		GeneratePayloadType: func(string) string { return "BYTEA" },
	}}
	var err error
	x.pool, err = pgxpool.New(t.Context(), x.server.URL())
	ok(t, err)
	t.Cleanup(x.pool.Close)
	return x
}

func (x *tables) prepare(ctx context.Context, topic string) error {
	queries, err := x.schema.SchemaInitializingQueries(wsql.SchemaInitializingQueriesParams{Topic: topic})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, x.pool, func(tx pgx.Tx) error {
		for _, q := range queries {
			if _, err := tx.Exec(ctx, q.Query, q.Args...); err != nil {
				return err
			}
		}
		return nil
	})
}

func (x *tables) remove(ctx context.Context, topic string) error {
	_, err := x.pool.Exec(ctx, `DROP TABLE `+x.schema.MessagesTable(topic))
	return err
}

func (x *tables) read(ctx context.Context, topic string) ([]*message.Message, error) {
	var found bool
	name := strings.Trim(x.schema.MessagesTable(topic), `"`)
	if err := x.pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, name).Scan(&found); err != nil || !found {
		return nil, err
	}
	rows, err := x.pool.Query(ctx, `SELECT uuid, payload, metadata FROM `+x.schema.MessagesTable(topic)+` ORDER BY transaction_id, "offset"`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*message.Message, error) {
		msg := message.NewMessage("", nil)
		return msg, row.Scan(&msg.UUID, (*[]byte)(&msg.Payload), &msg.Metadata)
	})
}

func (x *tables) restart(ctx context.Context) error {
	x.server.Crash()
	return x.server.Start(ctx)
}

// longUUID does not fit into the column.
func longUUID() *message.Message {
	return message.NewMessage(watermill.NewUUID()+watermill.NewUUID(), []byte("x"))
}

// pooled is a publisher with the pool that it writes to.
type pooled struct {
	*wsql.Publisher

	pool *pgxpool.Pool
}

func (p *pooled) Close() error {
	defer p.pool.Close()
	return p.Publisher.Close()
}

func (x *tables) target() *transporttest.Target {
	u, err := url.Parse(x.server.URL())
	if err != nil {
		panic(err)
	}
	open := func(ctx context.Context, address string) (message.Publisher, error) {
		through := *u
		through.Host = address
		pool, err := pgxpool.New(context.WithoutCancel(ctx), through.String())
		if err != nil {
			return nil, err
		}
		p, err := wsql.NewPublisher(wsql.BeginnerFromPgx(pool), wsql.PublisherConfig{SchemaAdapter: x.schema}, watermill.NopLogger{})
		if err != nil {
			pool.Close()
			return nil, errors.Join(err)
		}
		return &pooled{p, pool}, nil
	}
	return &transporttest.Target{
		Address: u.Host, Open: open, Prepare: x.prepare, Stored: x.read, Remove: x.remove, Bad: longUUID, Restart: x.restart,
	}
}
