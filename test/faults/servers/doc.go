// Package servers runs a private PostgreSQL and a private RabbitMQ for a run, and injects their
// faults.
//
//	s, err := servers.Start(ctx, servers.Config{})
//	defer s.Close()
//	err = s.Postgres.Crash(ctx)                                    // and recovery
//	err = s.Postgres.Set(ctx, "default_transaction_read_only", "on")
//	err = s.RabbitMQ.BlockMemory(ctx)
//
// The servers come from internal/testenv/service: installed binaries on private ports, in a
// directory of their own. Besides its administrator, each server has the user [User] with the
// password [Password], which must not show up anywhere. On RabbitMQ, programs under test log in as
// [User]. On PostgreSQL, [User] owns the tables, and the programs have roles of their own.
//
// A fault of a server affects all its users. Methods of one server may be called from several
// goroutines; they take turns.
package servers
