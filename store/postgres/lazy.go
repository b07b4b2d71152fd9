package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lazyTx has the methods of [pgx.Tx] that send something. The first of them to be called begins the
// transaction on the server.
type lazyTx struct {
	of interface {
		begun(ctx context.Context) (pgx.Tx, error)
	}
}

// Begin implements [pgx.Tx].
func (l lazyTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := l.of.begun(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Begin(ctx)
}

// Exec implements [pgx.Tx].
func (l lazyTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tx, err := l.of.begun(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return tx.Exec(ctx, sql, args...)
}

// Query implements [pgx.Tx].
func (l lazyTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx, err := l.of.begun(ctx)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	}
	return tx.Query(ctx, sql, args...)
}

// QueryRow implements [pgx.Tx].
func (l lazyTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tx, err := l.of.begun(ctx)
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	return tx.QueryRow(ctx, sql, args...)
}

// SendBatch implements [pgx.Tx].
func (l lazyTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	tx, err := l.of.begun(ctx)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return tx.SendBatch(ctx, b)
}

// CopyFrom implements [pgx.Tx].
func (l lazyTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	tx, err := l.of.begun(ctx)
	if err != nil {
		return 0, err
	}
	return tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare implements [pgx.Tx].
func (l lazyTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	tx, err := l.of.begun(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Prepare(ctx, name, sql)
}
