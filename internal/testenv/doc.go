// Package testenv gives a test a PostgreSQL, MySQL or MariaDB database of its own, and a RabbitMQ.
//
//	func TestWrite(t *testing.T) {
//		t.Parallel()
//		pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
//		…
//		conn, err := amqp091.Dial(testenv.AMQPURL(t))
//		queue := testenv.Name(t)
//
// The environment names the servers. "make test" and the command internal/testenv/cmd/testenv set
// it:
//
//	TEST_DATABASE_URL   a PostgreSQL role that may create databases
//	TEST_AMQP_URL       a RabbitMQ
//	TEST_RABBITMQCTL    a program that runs rabbitmqctl against that RabbitMQ
//	TEST_PG_BIN         a directory with psql, pg_dump and pg_restore
//	TEST_MYSQL_URL      a MySQL or MariaDB account that may create databases, or
//	TEST_MYSQL_FROM     the address that starts a server on demand
//
// Without the variables a test fails and says what to run. No test is skipped, since a test that
// does not run proves nothing.
//
// # Isolation
//
// [Postgres] creates a database for each test and drops it afterwards; no other database is ever
// touched. The RabbitMQ is shared: give exchanges and queues the prefix of [Name], and delete
// objects that outlive their connection. Tests of a whole server (alarms, crashes, restarts,
// settings) need [PrivatePostgres] or [PrivateRabbitMQ].
//
// All functions are safe for concurrent use, and leave no goroutine behind at the end of the test.
package testenv
