// Package servers runs a PostgreSQL and a RabbitMQ of a run's own, with a handle on
// everything that can go wrong with them.
//
//	s, err := servers.Start(ctx, servers.Config{})
//	defer s.Close()
//	err = s.Postgres.Crash(ctx)                                    // and recovery
//	err = s.Postgres.Set(ctx, "default_transaction_read_only", "on")
//	err = s.RabbitMQ.BlockMemory(ctx)
//
// The servers are those of internal/testenv/service: installed binaries on private
// ports, in a directory of their own. Each has, besides its administrator, the user
// [User] with the password [Password], which is to be seen nowhere. On RabbitMQ programs under
// test log in with it; on PostgreSQL it owns what they use, and they have roles of their own.
//
// What is done to a server is done to everybody on it. Methods of one server may be
// called from several goroutines; they take turns.
package servers
