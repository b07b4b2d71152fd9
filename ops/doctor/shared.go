package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// reader is a running consumer with its latest messages.
type reader struct {
	consumer, subject string
	topics            []string         // sorted
	stamps            map[string]int64 // of the messages in microseconds, by dispatch ID
	first, last       int64            // of the stamps
	sampled           bool             // there may be messages before first
}

const (
	// sampled is how many of a consumer's latest messages are compared.
	sampled = 500
	// enough is how many messages each of two consumers must have from their common time.
	enough = 10
)

// readers reads the running consumers of an inbox, with their latest messages.
func (r *run) readers(ctx context.Context, t *tables) {
	reporter, reports := t.store.(inbox.Reporter)
	if !reports {
		return
	}
	running, err := reporter.ListHandlers(ctx)
	if err != nil {
		r.failed(SharedQueue, t.Name, err)
		return
	}
	topics := make(map[string]map[string]bool)
	for i := range running {
		h := &running[i]
		if topics[h.Consumer] == nil {
			topics[h.Consumer] = make(map[string]bool)
		}
		for _, topic := range h.Topics {
			topics[h.Consumer][topic] = true
		}
	}
	message := `dispatch_id::text, (extract(epoch FROM stamp) * 1000000)::bigint`
	if t.SQLite != nil {
		message = `hex(dispatch_id), stamp`
	}
	type claim struct {
		id    string
		stamp int64
	}
	for i := range t.consumers {
		c := &t.consumers[i]
		if len(topics[c.name]) == 0 {
			continue
		}
		one := &reader{consumer: c.name, subject: t.Name + ": consumer " + c.name, topics: sortedKeys(topics[c.name]), stamps: make(map[string]int64)}
		claims, err := query(ctx, t, func(row scanner, v *claim) error { return row.Scan(&v.id, &v.stamp) },
			`SELECT `+message+` FROM {inbox} WHERE consumer = $1 AND applied_at IS NOT NULL ORDER BY stamp DESC LIMIT $2`, c.id, sampled)
		if err != nil {
			r.failed(SharedQueue, one.subject, err)
			return
		}
		for _, v := range claims {
			one.stamps[v.id] = v.stamp
		}
		if len(claims) > 0 {
			one.first, one.last, one.sampled = claims[len(claims)-1].stamp, claims[0].stamp, len(claims) == sampled
			t.readers = append(t.readers, one)
		}
	}
}

// sharedQueues looks for two consumers of the same topics that have no message in common, though both
// have messages of the same time: each consumer gets a part of one queue.
func (r *run) sharedQueues(all []*tables) {
	var readers []*reader
	for _, t := range all {
		readers = append(readers, t.readers...)
	}
	for i, a := range readers {
		for _, b := range readers[i+1:] {
			if n := a.apart(b); n > 0 {
				r.shared = true
				since, replay := a.since(b)
				r.add(SharedQueue, Loses, a.subject,
					fmt.Sprintf("of %d recent messages of topic %s it has those that consumer %s lacks, and lacks the others, since %s: both seem to read one queue", n, strings.Join(a.topics, ", "), b.consumer, since),
					"give each its own queue, such as amqp.DurablePubSub with another name; then "+replay)
			}
		}
	}
}

// since returns in words since when a and b share a queue, and the command that sends the messages
// again. The command begins with the first message of the newer consumer: an older message may be from
// a time before the consumer existed, and would have its effect now.
func (a *reader) since(b *reader) (words, replay string) {
	if b.first > a.first {
		a, b = b, a
	}
	from := time.UnixMicro(a.first).UTC()
	words = "about " + from.Format(time.RFC3339)
	if a.sampled {
		words += " or earlier"
	}
	replay = "boxpair replay --outbox URL --topic " + shell(a.topics[0]) + " --from " + from.Format(time.RFC3339Nano)
	if len(a.topics) > 1 {
		replay = "for each of the topics " + replay
	}
	return words, replay
}

// apart returns how many messages a and b have from their common time, if no message is in common. It
// returns 0 if a message is in common, or if the messages are too few to tell.
func (a *reader) apart(b *reader) int {
	if a.consumer == b.consumer || !slices.Equal(a.topics, b.topics) {
		return 0
	}
	from, until := max(a.first, b.first), min(a.last, b.last)
	within := func(stamp int64) bool { return from <= stamp && stamp <= until }
	ofA, ofB := 0, 0
	for id, stamp := range a.stamps {
		if _, common := b.stamps[id]; common && within(stamp) {
			return 0
		} else if within(stamp) {
			ofA++
		}
	}
	for _, stamp := range b.stamps {
		if within(stamp) {
			ofB++
		}
	}
	if ofA < enough || ofB < enough {
		return 0
	}
	return ofA + ofB
}
