package storetest

import (
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

func topicTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "waiting and dead events are counted by topic", run: topicsCount[TX]},
		{fact: "topics are counted up to a limit, from the oldest events on", run: topicsCapped[TX]},
		{fact: "event that is sent again is not the oldest of its topic", run: topicsReplayed[TX]},
	}
}

// topics counts the topics, without the ages of their oldest events.
func (o *outboxRig[TX]) topics(limit int) (c outbox.TopicCounts, ages []time.Duration) {
	o.Helper()
	counter, ok := o.Store.(outbox.TopicCounter)
	if !ok {
		o.Fatalf("%T is no outbox.TopicCounter", o.Store)
	}
	c, err := counter.CountTopics(o.ctx(), limit)
	o.ok(err)
	for i := range c.Topics {
		ages = append(ages, c.Topics[i].Oldest)
		c.Topics[i].Oldest = 0
	}
	return c, ages
}

func (o *outboxRig[TX]) expectTopics(limit int, want outbox.TopicCounts) []time.Duration {
	o.Helper()
	got, ages := o.topics(limit)
	if got.WaitingCapped != want.WaitingCapped || got.DeadCapped != want.DeadCapped || !slices.Equal(got.Topics, want.Topics) {
		o.Errorf("topics are %+v, want %+v", got, want)
	}
	return ages
}

func topicsCount[TX any](o *outboxRig[TX]) {
	o.expectTopics(0, outbox.TopicCounts{})
	h := o.ownKey(6)
	h.park(0, long)
	h.follow(1)
	h.parkDead(2)
	other := record("", "other")
	other.Topic = "other topic"
	o.write(other)
	o.expectTopics(0, outbox.TopicCounts{Topics: []outbox.TopicCount{{Topic: "other topic", Waiting: 1}, {Topic: "topic", Waiting: 5, Dead: 1}}})
	o.eventually("the oldest events have ages", func() bool {
		_, ages := o.topics(0)
		return ages[0] > 0 && ages[0] < ages[1] && ages[1] < long
	})
	h.sent(0, 1)
	h.deliver(3, 4, 5)
	ages := o.expectTopics(0, outbox.TopicCounts{Topics: []outbox.TopicCount{{Topic: "other topic", Waiting: 1}, {Topic: "topic", Dead: 1}}})
	if ages[1] != 0 {
		o.Errorf("the oldest of no waiting event is %v old", ages[1])
	}
}

func topicsCapped[TX any](o *outboxRig[TX]) {
	h := o.ownKey(5)
	late := recordIn(h.lease.Shard, "late")
	late.Topic = "late"
	o.write(late)
	o.expectTopics(6, outbox.TopicCounts{Topics: []outbox.TopicCount{{Topic: "late", Waiting: 1}, {Topic: "topic", Waiting: 5}}})
	o.expectTopics(5, outbox.TopicCounts{WaitingCapped: true, Topics: []outbox.TopicCount{{Topic: "topic", Waiting: 1}}})
	h.parkDead(0)
	h.parkDead(1)
	h.parkDead(2)
	h.deliver(3, 4)
	o.expectTopics(3, outbox.TopicCounts{Topics: []outbox.TopicCount{{Topic: "late", Waiting: 1}, {Topic: "topic", Dead: 3}}})
	counts, _ := o.topics(2)
	if !counts.DeadCapped || counts.WaitingCapped || len(counts.Topics) != 2 || counts.Topics[1].Dead < 2 {
		o.Errorf("topics are %+v, want more than 2 dead", counts)
	}
}

func topicsReplayed[TX any](o *outboxRig[TX]) {
	o.requeue(o.deliverAll(record("key", "0"))...)
	ages := o.expectTopics(0, outbox.TopicCounts{Topics: []outbox.TopicCount{{Topic: "topic", Waiting: 1}}})
	if ages[0] != 0 {
		o.Errorf("an event that is sent again is %v old", ages[0])
	}
}
