// Package dedupe remembers in memory the dispatch IDs that a consumer has applied or parked, so that
// a duplicate is recognised without asking the database.
//
// A [Window] is a bounded LRU cache. It may only ever say "certainly seen": for an unknown ID the
// inbox table decides. An empty, small or new window therefore changes how fast duplicates are
// recognised, and never the result.
//
// # What may be added, and when
//
// A dispatch ID is added after the transaction of its claim is known to be committed, and never
// before. Otherwise a rolled-back transaction would leave its ID in the window, the next copy would
// count as a duplicate, and the message would be lost. A commit with an unknown outcome adds no ID.
//
// # What survives a crash
//
// Nothing, and nothing has to. A consumer warms a new window from the newest rows of its inbox.
//
// # After a fail-over of the database
//
// A window is as true as the database that filled it. After a fail-over that lost commits, the
// window may remember transactions that never happened. [Window.Forget] therefore begins a new
// term: all IDs of earlier terms are misses from then on, even an ID that is added late under an
// earlier [Term], by a transaction that began before.
//
// # Guarantees
//
//   - [Window.Seen] answers [Duplicate] or [Altered] only for IDs that were added in the present
//     term.
//   - A window never holds more entries than its size.
//
// # Assumptions
//
// One window belongs to one consumer on one database: two consumers with a common window would
// swallow each other's messages.
//
// # Limitations
//
// An entry costs about 150 bytes, its share of the map included: 10 MiB for the default size. A
// lookup takes about 100 ns under one lock: a window is not sharded.
package dedupe
