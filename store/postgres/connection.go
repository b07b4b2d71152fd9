package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connection is a connection of the pool, for the time of a transaction.
type connection interface {
	Conn() *pgx.Conn
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	Release()
}

// connections is the source of connections: the pool, or [lender] for a [SQLStore].
type connections interface {
	acquire(ctx context.Context) (connection, error)
}

// pooled are the connections of a pool.
type pooled struct{ *pgxpool.Pool }

func (p pooled) acquire(ctx context.Context) (connection, error) {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return conn, nil
}

// hijack takes a connection out of the pool for good. The pool may open a new connection meanwhile.
func (p pooled) hijack(ctx context.Context) (*pgx.Conn, error) {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Hijack(), nil
}
