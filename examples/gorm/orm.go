package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// transactionOf returns the transaction that db, which [gorm.DB.Transaction] has given to its
// function or [gorm.DB.Begin] has returned, runs in. That is what an outbox on postgres.NewSQL
// takes.
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

// within returns a session of db in which all that GORM does runs in tx, as a handler's
// transaction. Whoever has begun tx ends it; GORM's own Transaction makes savepoints in it.
func within(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	session := db.Session(&gorm.Session{NewDB: true, Context: ctx})
	session.Statement.ConnPool = tx
	return session
}

// one returns the error of a change, and an error as well if it did not change one row.
func one(result *gorm.DB) error {
	switch {
	case result.Error != nil:
		return result.Error
	case result.RowsAffected != 1:
		return errors.New("there is no such row, or not enough in it")
	}
	return nil
}
