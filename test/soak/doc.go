// Package soak runs a chain under load for a while and does everything to it at once that a
// bad day brings: processes are killed and stopped, PostgreSQL crashes, RabbitMQ is killed,
// connections are cut or go silent, and copies of messages are put on the wire. Then the faults
// stop, everything has to come to rest, and what was done is counted.
//
//	report, err := soak.Run(ctx, soak.Config{Duration: time.Minute, Seed: 1, Dir: dir})
//
// Two producers write events of a few hundred keys, many to a transaction; two relays send
// them; of two consumers one has the queue at a time, as the order of keys wants it, and the other
// takes over when that one dies. All of them are processes of their own, and reach the servers
// through proxies in this one. A seed decides what is done to whom and when; since everything else
// runs at its own pace, a run with the same seed is alike, not the same.
//
// The count ([Report]) needs no memory of its own: orders, events and effects are rows in
// PostgreSQL, effects without any key that would keep a second one out.
package soak
