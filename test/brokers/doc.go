// Package brokers runs [transporttest] on the publishers that docs/transports.md speaks of: those
// of this library, and those of Watermill for other brokers. It is a module of its own, so that
// nobody who uses the library gets their clients and servers.
//
// RabbitMQ is the tests' own, and not crashed: the tests of transport/amqp do that. PostgreSQL is a
// private server. nats-server and kfake, a Kafka in Go, are built in and run in processes of their
// own: this test binary, called with [serveVariable] set, so that a crash is a kill.
//
//	make brokers        run the suite on all of them, and compare with the table in docs/transports.md
//	make brokers-doc    write that table
package brokers
