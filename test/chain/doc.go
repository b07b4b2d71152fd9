// Package chain tests the whole chain, over real services: an outbox in
// PostgreSQL, a relay, RabbitMQ, and an inbox in PostgreSQL; and, where that
// says more, SQLite and the transport within one process. It holds tests alone.
//
// Each test states what a user may rely on when processes are killed or stopped,
// replies are lost, transactions commit late or databases are moved. Processes
// that are to be killed are the test binary itself, started again with a role.
// Effects are counted in tables that only grow and have no unique constraint, so
// that a second effect is seen and not refused.
package chain
