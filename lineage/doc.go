// Package lineage follows an event through services: to the consumers that have applied the event, to
// the events that their handlers wrote, to the consumers of these events, and so on. Tests and
// requests can wait for all effects of an event, in place of sleeping.
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
// An event that a handler writes without a Source gets a dispatch ID computed from the name of the
// consumer, the dispatch ID of the handled message, and a count ([idgen.Child]). So the children of
// an event are looked up by their computed IDs, for every consumer that has applied the event.
// Services store no links between events. [Lineage.Tree] asks each inbox and each outbox once for
// each level of the tree, and again only for handlers that wrote many events.
//
// An event is done when the event was delivered, all consumers that expect its topic have applied the
// event, and all children are done. A message whose effect outside the database is unfinished is not
// applied yet. Consumers with the same name in different inboxes all count.
//
// # Why a finished tree is finished
//
// A handler commits its claim, its effects and its events in one transaction. For each level,
// [Lineage.Tree] reads the inboxes before the outboxes. A claim in an inbox is committed together
// with all its children, so the outboxes show the children. In the reverse order, a handler could
// commit between the two reads, and its children would be missed. The reads need no common snapshot:
// a delivered event stays delivered, and an applied event stays applied.
//
// # Assumptions
//
// The databases are primaries: a replica may show a claim earlier than the children that were
// committed with the claim. Outboxes retain the events, and inboxes the dispatch IDs, for as long as
// an application asks for them. An operator who replays an event begins anew.
//
// # Limitations
//
// An event with an identity of its own (a Source, or Random) is no child of the message whose handler
// wrote the event: ask for the event by its own dispatch ID. Effects outside the database are
// unknown, except for effects of package effects.
package lineage
