// Package audit checks two live databases against each other: what producers have
// committed to their outboxes with what consumers have applied by their inboxes.
//
// An [Audit] is made over readers of outboxes and inboxes, which store/postgres
// and store/sqlite have, and over expectations: which consumer should have which
// topics. [Audit.Run] reads both sides and returns a [Report]. It changes nothing.
// The command boxpair verify is made of it.
//
// # What is found
//
//   - [NotApplied]: an event left its outbox, and a consumer that should have it has
//     neither applied nor parked it.
//   - [NotCommitted]: a consumer has applied what no outbox has committed.
//   - [DigestDiffers]: both have it, and the content is not the same.
//   - [Pending]: an event is still in the queue.
//   - [Parked]: an event or message is tried again and again, or waits behind one that is.
//   - [Dead], [TooOld], [Altered], [Discarded]: what waits for an operator, or was given up.
//   - [LogMissing]: a queue names an event that the log does not have.
//
// # How
//
// Both sides are read in the order of time: events by their number, claims by their stamp,
// which is the time of the event that they are of. What belongs together therefore
// comes at about the same time, and is joined in memory, in a window that has a bound
// whatever the size of the tables. What finds no partner there becomes a candidate, and
// is looked up by its dispatch ID on both sides. So the window decides
// how fast an audit is, never what it says.
//
// Joining by dispatch ID instead, with two indexes read in their order, would need no window.
// But dispatch IDs are scattered over the tables: every row costs a page of its own, and
// an audit of the last hour would read all of the history.
//
// # Live databases
//
// The two sides are read at different moments, and events are on their way between them. So what
// is younger than [Config].Grace, or was delivered within it, is in flight and no finding;
// and whatever looks wrong is looked up again, in the end or once some thousands
// have gathered, before it is reported. Each page is read in a short
// transaction of its own, so that no snapshot keeps vacuum from its work. An event whose
// transaction commits behind the place that was just read is left to the next audit.
//
// What retention has removed from an outbox, or a consumer has forgotten, can no longer be
// compared. It is counted in [Outside], not reported as lost.
//
// # Assumptions
//
// The clocks of the databases agree within the grace time. The inboxes' databases are
// primaries: a replica may show a commit later than another that depends on it.
package audit
