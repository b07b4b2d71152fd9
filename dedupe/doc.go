// Package dedupe remembers in memory which dispatch IDs a consumer has dealt
// with, so that a duplicate is told without asking the database.
//
// A [Window] is a bounded LRU cache. It may only ever say "certainly seen": what
// it does not know, it knows nothing about, and the inbox table decides.
// Therefore a window that is empty, small or new changes how fast duplicates are
// told and never how.
//
// # What may be added, and when
//
// A dispatch ID is added after the transaction that claimed it is known to be
// committed, and never before: an ID that is remembered although its
// transaction was rolled back would make the next copy a duplicate of nothing,
// and the message would be lost. A commit whose outcome is not known adds
// nothing.
//
// # What survives a crash
//
// Nothing, and nothing has to. A consumer warms a new window from the newest
// rows of its inbox.
//
// # When the database may be another one
//
// A window is as true as the database that it was filled from. After a
// fail-over that lost commits, some of what it remembers never happened. So
// [Window.Forget] begins a new term: everything that was added before is a miss
// from then on, and so is what is added late under an earlier [Term], by a
// transaction that began before.
//
// # Guarantees
//
//   - [Window.Seen] answers [Duplicate] or [Altered] only for IDs that were added
//     in the present term.
//   - It never holds more than the number of entries that it was made for.
//
// # Assumptions
//
// One window belongs to one consumer on one database: two consumers that share
// one would swallow each other's messages.
//
// # Limitations
//
// An entry costs about 150 bytes, its share of the map included: 10 MiB for
// the default size. A lookup takes about 100 ns under one lock: a window is
// not sharded.
package dedupe
