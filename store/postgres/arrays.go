package postgres

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// leanFrom is the length of arrays from which asking the connection for its encoding pays off.
const leanFrom = 16

// described tells whether the connection of tx asks the server for the types of arguments, as in
// all modes that describe a statement first. Other modes guess the types from Go, and do not know
// the types of this file.
func described(tx pgx.Tx) bool {
	var conn *pgx.Conn
	switch tx := tx.(type) { // Conn of a guardedTx would begin the transaction
	case *guardedTx:
		conn = tx.guard.tx.session
	default:
		if conn = tx.Conn(); conn == nil {
			return false
		}
	}
	return describes(conn.Config().DefaultQueryExecMode)
}

func describes(mode pgx.QueryExecMode) bool {
	switch mode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec:
		return true
	default:
		return false
	}
}

// ints returns n as an argument of a statement in the store's own mode.
func (s *Store) ints(n []int64) any {
	if describes(s.mode) {
		return leanInts(n)
	}
	return n
}

// lean is a slice that pgx encodes as an array of one dimension without an allocation per element:
// pgx takes an element as an interface, which needs a copy of a value, but not of a pointer.
type lean[T, P any] struct {
	elements []T
	at       func(*T) P
}

// Dimensions implements [pgtype.ArrayGetter].
func (l lean[T, P]) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(l.elements)), LowerBound: 1}}
}

// Index implements [pgtype.ArrayGetter].
func (l lean[T, P]) Index(i int) any { return l.at(&l.elements[i]) }

// IndexType implements [pgtype.ArrayGetter].
func (l lean[T, P]) IndexType() any {
	var none P
	return none
}

type leanText string

// TextValue implements [pgtype.TextValuer].
func (t *leanText) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: string(*t), Valid: true}, nil
}

type leanBytes []byte

// BytesValue implements [pgtype.BytesValuer].
func (b *leanBytes) BytesValue() ([]byte, error) { return *b, nil }

type leanInt int64

// Int64Value implements [pgtype.Int64Valuer].
func (n *leanInt) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*n), Valid: true}, nil
}

func leanTexts(s []string) any {
	return lean[string, *leanText]{s, func(s *string) *leanText { return (*leanText)(s) }}
}

func leanByteas(b [][]byte) any {
	return lean[[]byte, *leanBytes]{b, func(b *[]byte) *leanBytes { return (*leanBytes)(b) }}
}

func leanInts(n []int64) any {
	return lean[int64, *leanInt]{n, func(n *int64) *leanInt { return (*leanInt)(n) }}
}

// leanValues is for elements whose pointers pgx can encode.
func leanValues[T any](v []T) any {
	return lean[T, *T]{v, func(v *T) *T { return v }}
}
