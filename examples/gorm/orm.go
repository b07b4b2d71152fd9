package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// transactionOf returns the transaction behind db, for an outbox on postgres.NewSQL. db comes from
// [gorm.DB.Begin], or is the argument of the function of [gorm.DB.Transaction].
func transactionOf(db *gorm.DB) (*sql.Tx, error) {
	conn := db.Statement.ConnPool
	if prepared, ok := conn.(*gorm.PreparedStmtTX); ok { // with gorm.Config.PrepareStmt
		conn = prepared.Tx
	}
	tx, ok := conn.(*sql.Tx)
	if !ok {
		return nil, fmt.Errorf("no transaction of GORM's is open, but a %T", conn)
	}
	return tx, nil
}

// within returns a session of db in which GORM uses tx, such as a handler's transaction. The owner
// of tx ends it; GORM's own Transaction makes savepoints in tx.
func within(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	session := db.Session(&gorm.Session{NewDB: true, Context: ctx})
	session.Statement.ConnPool = tx
	return session
}

// one returns the error of a change, or an error if the change did not affect exactly one row.
func one(result *gorm.DB) error {
	switch {
	case result.Error != nil:
		return result.Error
	case result.RowsAffected != 1:
		return errors.New("there is no such row, or not enough in it")
	}
	return nil
}
