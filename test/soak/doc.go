// Package soak runs a chain under load for a while, with all the faults of a bad day at once:
// processes are killed and stopped, PostgreSQL crashes, RabbitMQ is killed, connections are cut or
// go silent, and copies of messages are published. Then the faults stop, the chain must come to
// rest, and its work is counted.
//
//	report, err := soak.Run(ctx, soak.Config{Duration: time.Minute, Seed: 1, Dir: dir})
//
// Two producers write events of a few hundred keys, many in a transaction; two relays send the
// events. One of two consumers reads the queue at a time, as the order of keys requires; the other
// consumer takes over when the first dies. All of them are separate processes, and reach the
// servers through proxies in this process. The seed decides the faults, their targets and their
// times. All other work runs at its own pace, so two runs with one seed are similar, not equal.
//
// The count ([Report]) needs no memory of its own: orders, events and effects are rows in
// PostgreSQL. No unique constraint on effects could hide a second effect.
package soak
