package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/boxpair/boxpair/producer"
)

// statement is a statement as sent to the driver.
type statement struct {
	sql  string
	args []any
}

// fresh returns the arguments with new IDs.
func (s statement) fresh() []any {
	args := make([]any, len(s.args))
	for i, arg := range s.args {
		switch v := arg.(type) {
		case []pgtype.UUID:
			ids := make([]pgtype.UUID, len(v))
			for i := range ids {
				ids[i] = pgtype.UUID{Bytes: uuid.New(), Valid: true}
			}
			arg = ids
		case pgtype.UUID:
			arg = pgtype.UUID{Bytes: uuid.New(), Valid: true}
		case uuid.UUID:
			arg = uuid.New()
		case string:
			if _, err := uuid.Parse(v); err == nil {
				arg = uuid.NewString()
			}
		}
		args[i] = arg
	}
	return args
}

// spy records the statement that writes events. It is a [pgx.QueryTracer] and a [pgx.BatchTracer].
type spy struct {
	mu    sync.Mutex
	found *statement
}

func (s *spy) see(sql string, args []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil && strings.Contains(sql, "outbox_events") && strings.Contains(sql, "INSERT") {
		s.found = &statement{sql, args}
	}
}

func (s *spy) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.see(data.SQL, data.Args)
	return ctx
}

func (s *spy) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *spy) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *spy) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.see(data.SQL, data.Args)
}

func (s *spy) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// captured returns the statement with which the library writes events, so that the limits send an
// equal statement.
func captured(ctx context.Context, pool *pgxpool.Pool, outbox *producer.Outbox[pgx.Tx], events []producer.Event) (statement, error) {
	cfg := pool.Config().ConnConfig.Copy()
	seen := &spy{}
	cfg.Tracer = seen
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return statement{}, hidden(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tx, err := conn.Begin(ctx)
	if err != nil {
		return statement{}, err
	}
	_, err = outbox.Tx(tx).Write(ctx, events...)
	if err = errors.Join(err, tx.Rollback(ctx)); err != nil {
		return statement{}, err
	}
	if seen.found == nil {
		return statement{}, errors.New("the statement that writes events was not recognised")
	}
	return *seen.found, nil
}

// rawOnce sends a whole transaction in one round trip.
func rawOnce(_ context.Context, d *desk) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		b := &pgx.Batch{}
		b.Queue("begin")
		b.Queue(insertOrder, uuid.New(), payload)
		b.Queue(d.append.sql, d.append.fresh()...)
		b.Queue("commit")
		return d.pool.SendBatch(ctx, b).Close()
	}, nil
}

// byHand sends the captured statements one after another.
func byHand(_ context.Context, d *desk) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		return d.transaction(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, d.append.sql, d.append.fresh()...)
			return err
		})
	}, nil
}

// unnest writes the events like code without this library: copies and other writers are not
// noticed.
func unnest(_ context.Context, d *desk) (func(context.Context) error, error) {
	const insert = `WITH e AS (
		INSERT INTO outbox_events (dispatch_id, digest, shard, topic, key, producer, source, version, payload)
		SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bytea[])
		RETURNING shard, id
	) INSERT INTO outbox_queue (shard, id) SELECT shard, id FROM e`
	return func(ctx context.Context) error {
		events := d.batch()
		n := len(events)
		ids, digests, bodies := make([]pgtype.UUID, n), make([][]byte, n), make([][]byte, n)
		shards, versions := make([]int16, n), make([]int64, n)
		topics, keys, producers, sources := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		for i, e := range events {
			id := uuid.New()
			ids[i], digests[i], bodies[i] = pgtype.UUID{Bytes: id, Valid: true}, id[:], e.Payload
			shards[i], versions[i] = int16(id[0]%64), e.Version
			topics[i], keys[i], producers[i], sources[i] = e.Topic, e.Key, "bench", e.Source
		}
		return d.transaction(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert, ids, digests, shards, topics, keys, producers, sources, versions, bodies)
			return err
		})
	}, nil
}

// watermillEnqueue writes messages for Watermill's forwarder.
func watermillEnqueue(ctx context.Context, d *desk) (func(context.Context) error, error) {
	table := watermillSchema(0)
	if err := fillForwarder(ctx, d.pool, 1); err != nil { // makes the table
		return nil, err
	}
	return func(ctx context.Context) error {
		return d.transaction(ctx, func(tx pgx.Tx) error {
			p, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: table}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			messages := make([]*message.Message, d.events)
			for i := range messages {
				messages[i] = watermillMessage()
				messages[i].SetContext(ctx)
			}
			return forwarder.NewPublisher(p, forwarder.PublisherConfig{}).Publish("topic-0", messages...)
		})
	}, nil
}

// riverEnqueue inserts one job.
func riverEnqueue(ctx context.Context, d *desk) (func(context.Context) error, error) {
	if err := riverTables(ctx, d.pool); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(d.pool), &river.Config{})
	if err != nil {
		return nil, fmt.Errorf("river: %w", err)
	}
	return func(ctx context.Context) error {
		return d.transaction(ctx, func(tx pgx.Tx) error {
			_, err := client.InsertTx(ctx, tx, riverJob{"topic-0", payload}, nil)
			return err
		})
	}, nil
}
