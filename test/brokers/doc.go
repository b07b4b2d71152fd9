// Package brokers runs [transporttest] on the publishers in docs/transports.md: the publishers of
// this library, and Watermill's publishers for other brokers. The package is a module of its own,
// so that users of the library do not get the clients and servers of these brokers.
//
// RabbitMQ is the tests' own server and is not crashed here: the tests of transport/amqp crash it.
// PostgreSQL is a private server. nats-server and kfake, a Kafka in Go, are built in and run in
// processes of their own: this test binary with [serveVariable] set, so that a crash is a kill.
//
//	make brokers        run the suite on all publishers, and compare with the table in docs/transports.md
//	make brokers-doc    write that table
package brokers
