// Package transporttest tells whether a Watermill publisher may be what a relay publishes to.
//
// A relay takes an event out of its outbox when Publish has returned nil for it. So nil
// must mean that the broker has the message and keeps it, whatever happens next; and
// what failed must be an error, within a time, from which the publisher comes back. Watermill
// does not ask that of a publisher, and some that are widely used do not give it.
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
// [Cases] lists what is asked and why. docs/transports.md has the results of publishers that are in
// use.
//
// # How it looks
//
// Every case has a publisher, a topic and a line of its own. The line is a TCP proxy before the
// broker that can be cut, and that can fall silent as a broker does which accepts and answers
// nothing. What the publisher answered with nil is compared with what [Target.Stored]
// reads on a connection that does not go through the line.
//
// # Limitations
//
// A publisher that passes has lost nothing in what was tried. What the broker does with a message
// that it has confirmed, when a disk or a replica fails, is beyond a test from outside: use
// durable, replicated topics. Publishers that are no [transport.Sender] are tried as a relay uses
// them: batches of one topic, then one by one what failed.
package transporttest
