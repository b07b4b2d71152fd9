package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/migrations"
)

// failed wraps err, the error of a statement, with the failed action. pgx prints severity, message
// and SQLSTATE of an error, but not the detail, which would show rows.
func failed(doing string, err error) error {
	return fmt.Errorf("%s: %w", doing, hint(err))
}

func hint(err error) error {
	switch sqlState(err) {
	case "42P01", "3F000", "42703": // undefined table, schema, column
		return fmt.Errorf("%w: %w", err, migrations.ErrMissing)
	}
	return err
}

// sqlState returns the SQLSTATE of err, or "".
func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}
