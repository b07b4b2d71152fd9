// Package lineage follows an event through services: which consumers have applied it, which events
// their handlers wrote, who has applied those, and so on, until nothing is left to do. Tests and
// requests that need the effects of an event wait for them, instead of for a time.
//
//	shop, err := lineage.New(lineage.Config{
//	    Outboxes:  []lineage.Outbox{{Name: "orders", Events: orders}, {Name: "stock", Events: stock}},
//	    Inboxes:   []lineage.Inbox{{Name: "stock", Messages: stockInbox}},
//	    Consumers: map[string][]string{"stock/reserve": {"order.placed"}},
//	})
//	err = shop.WaitDone(ctx, placed.ID)
//
// # How an event is followed
//
// A handler that writes an event without a Source gives it a dispatch ID that follows from the name
// of the consumer, the dispatch ID of the handled message, and a count ([idgen.Child]). So the
// children of an event are looked up by their computed IDs, for every consumer that has applied the
// event. No service stores anything for it. [Lineage.Tree] asks each inbox and each outbox once for
// each level of the tree, and again only for handlers that wrote many events.
//
// An event is done when it was delivered, every consumer that expects its topic has applied it, and
// its children are done. A message whose effect outside the database is not finished is not applied
// yet. Several consumers may have one name in different inboxes: each of them counts.
//
// # Why a finished tree is finished
//
// A handler commits its claim, its effects and its events in one transaction. For each level,
// [Lineage.Tree] reads the inboxes before it looks for children in the outboxes. A claim that the
// first read shows is committed, and so are all children of it: the second read finds them. In the
// other order, a handler could commit between the two reads, and its children would be missed. The
// reads are no common snapshot, and need none: an event that was delivered or applied stays so.
//
// # Assumptions
//
// The databases are primaries: a replica may show a claim, and later the children that were
// committed with it. Events are retained in the outboxes, and dispatch IDs in the inboxes, for as
// long as somebody asks for them. An operator who replays an event begins anew.
//
// # Limitations
//
// An event with an identity of its own (a Source, or Random) is no child of the message in whose
// handler it was written. Such an event has to be asked for by its own dispatch ID. Effects of a
// handler outside its database are not known, except those of package effects.
package lineage
