// Package opsscene makes an outbox and an inbox in one database, SQLite or PostgreSQL, with something in
// every state, for the tests of the dashboard and its pictures.
package opsscene
