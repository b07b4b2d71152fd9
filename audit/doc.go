// Package audit compares two live databases: the events that producers have committed to their
// outboxes with the messages that consumers have applied through their inboxes.
//
// An [Audit] takes readers of outboxes and inboxes, which store/postgres and store/sqlite
// implement, and expectations: the topics that each consumer should receive. [Audit.Run] reads both
// sides and returns a [Report]. Run changes nothing. The command boxpair verify is built on this
// package.
//
// # Findings
//
//   - [NotApplied]: an event left its outbox, and a consumer that expects its topic has neither
//     applied nor parked the message.
//   - [NotCommitted]: a consumer has applied an event that no outbox has committed.
//   - [DigestDiffers]: the event is committed and applied, with different content.
//   - [Pending]: an event is still in the queue.
//   - [Parked]: an event or a message is retried, or waits behind a retried one.
//   - [Dead], [TooOld], [Altered], [Discarded]: an event or a message waits for an operator, or an
//     operator gave it up.
//   - [LogMissing]: a queue names an event that is missing in the log.
//
// # Method
//
// Both sides are read in the order of time: events by their number, claims by their stamp, which is
// the creation time of the claimed event. An event and its claims therefore arrive at about the
// same time, and are joined in memory. The window of the join is bounded, for tables of any size. An
// event or claim without a partner in the window becomes a candidate, and is looked up by its
// dispatch ID on both sides. So the window decides how fast an audit runs, and never its result.
//
// A merge of two indexes on the dispatch ID would need no window. But dispatch IDs are scattered
// over the tables: each row would cost a page of its own, and an audit of the last hour would read
// the whole history.
//
// # Live databases
//
// The two sides are read at different moments, while events move between them. An event that is
// younger than [Config].Grace, or was delivered within Grace, is therefore in flight and no
// finding. Every suspect is looked up again before it is reported, at the end of the audit or once
// some thousands have gathered. Each page is read in a short transaction of its own, so that no
// snapshot holds back vacuum. An event whose transaction commits behind the current position is
// left to the next audit.
//
// Events that retention has removed from an outbox, and dispatch IDs that a consumer has forgotten,
// cannot be compared any more. [Outside] counts them. They are not reported as lost.
//
// # Assumptions
//
// The clocks of the databases agree within Grace. The inboxes' databases are primaries: a replica
// may show a commit later than a dependent commit.
package audit
