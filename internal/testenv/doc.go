// Package testenv gives a test a PostgreSQL database, a MySQL or MariaDB one, and a RabbitMQ of its
// own.
//
//	func TestWrite(t *testing.T) {
//		t.Parallel()
//		pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
//		…
//		conn, err := amqp091.Dial(testenv.AMQPURL(t))
//		queue := testenv.Name(t)
//
// The servers are found through the environment, which make test and the
// command internal/testenv/cmd/testenv fill in:
//
//	TEST_DATABASE_URL   a PostgreSQL role that may create databases
//	TEST_AMQP_URL       a RabbitMQ
//	TEST_RABBITMQCTL    a program that runs rabbitmqctl against that RabbitMQ
//	TEST_PG_BIN         a directory with psql, pg_dump and pg_restore
//	TEST_MYSQL_URL      a MySQL or MariaDB account that may create databases, or
//	TEST_MYSQL_FROM     where to ask for one
//
// Without them a test fails and says what to run: a test that does not run
// proves nothing, so nothing is ever skipped.
//
// # Isolation
//
// [Postgres] creates a database for each test and drops it afterwards; no other
// database is ever touched. The RabbitMQ is shared: give exchanges and queues
// the prefix that [Name] returns, and delete what outlives its connection.
// Whatever concerns a server as a whole (alarms, crashes, restarts, server
// settings) needs [PrivatePostgres] or [PrivateRabbitMQ].
//
// All functions are safe for concurrent use, and leave no goroutine behind when
// the test has ended.
package testenv
