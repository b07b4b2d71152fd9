// Package chain tests the whole chain on real servers: an outbox in PostgreSQL, a relay, RabbitMQ,
// and an inbox in PostgreSQL; some tests use SQLite and the transport within one process. It holds
// tests only.
//
// Each test states a guarantee for users when processes are killed or stopped, replies are lost,
// transactions commit late or databases are moved. Processes to be killed are the test binary
// itself, started again with a role. Effects are rows in tables that only grow and have no unique
// constraint, so that a second effect is seen and not refused.
package chain
