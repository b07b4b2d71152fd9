// Package transporttest tests whether a relay may publish to a Watermill publisher.
//
// A relay removes an event from its outbox when Publish has returned nil for the event. So nil must
// mean that the broker keeps the message, whatever happens next. Every failure must be an error,
// returned within a bounded time, and the publisher must recover from the failure. Watermill does not
// demand these guarantees of a publisher, and some widely used publishers do not give them.
//
//	func TestPublisherMayBeARelaysTarget(t *testing.T) {
//		transporttest.Test(t, &transporttest.Target{
//			Address: "127.0.0.1:4222",
//			Open:    func(ctx context.Context, address string) (message.Publisher, error) { … },
//			Prepare: func(ctx context.Context, topic string) error { … },
//			Stored:  func(ctx context.Context, topic string) ([]*message.Message, error) { … },
//		})
//	}
//
// [Test] fails for each case that the publisher does not pass, [Check] returns a [Report], and
// [Cases] lists the requirements and their reasons. docs/transports.md has the results of widely
// used publishers.
//
// # Method
//
// Every case has a publisher, a topic and a line of its own. The line is a TCP proxy before the
// broker. It can be cut, and it can fall silent like a broker that accepts connections and answers
// nothing. The messages for which Publish returned nil are compared with the messages that
// [Target.Stored] reads on a connection beside the line.
//
// # Limitations
//
// Passing means that no message was lost in these cases. A test from outside cannot see how the
// broker treats a confirmed message when a disk or a replica fails: use durable, replicated topics.
// A publisher that is no [transport.Sender] is used as a relay uses it: batches of one topic, then
// the messages of a failed batch one by one.
package transporttest
