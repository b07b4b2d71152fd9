package outbox

import (
	"encoding/json"
	"fmt"
	"time"
)

// RelayReport is what a relay tells of itself, see [RelayStore.ReportRelay]. The relay writes the
// times by the clock of its process, and [Relay.Decode] turns them into times of the database. A
// time is zero if its event has not happened since the relay was started.
type RelayReport struct {
	// At is when the relay made the report.
	At time.Time `json:"at"`
	// Host is the name of the relay's host, and Version the version of this library, or "" if it is
	// not known.
	Host    string `json:"host"`
	Version string `json:"version"`
	// StartedAt is when the relay was started.
	StartedAt time.Time `json:"started_at"`
	// Window is how many events may be in flight at once. InFlight counts the events at the
	// transport, Waiting the unsent events in memory, and Unmarked the confirmed events that are
	// still in the queue.
	Window   int `json:"window"`
	InFlight int `json:"in_flight"`
	Waiting  int `json:"waiting"`
	Unmarked int `json:"unmarked"`
	// OldestInFlight is when the oldest event in flight was given to the transport.
	OldestInFlight time.Time `json:"oldest_in_flight,omitzero"`
	// LastConfirm is when an event was last confirmed.
	LastConfirm time.Time `json:"last_confirm,omitzero"`
	// Sent counts the confirmed events, and Failed the counted attempts, since the relay was
	// started.
	Sent   int64 `json:"sent"`
	Failed int64 `json:"failed"`
	// SentPerSecond is the rate of confirmed events between the last two heartbeats before the
	// report.
	SentPerSecond float64 `json:"sent_per_second"`
	// Topics are the topics that the relay has read events of, the ones that do not work first, then
	// the busiest; at most a thousand. MoreTopics is the number of topics that were left out. A relay
	// with thousands of topics forgets the ones without events.
	Topics     []TopicReport `json:"topics"`
	MoreTopics int           `json:"more_topics,omitempty"`
}

// TopicReport is a topic in a [RelayReport].
type TopicReport struct {
	// Topic is the topic, and Route the name of its route, as of [transport.Sender]. Topics may share
	// a route.
	Topic string `json:"topic"`
	Route string `json:"route"`
	// State is the state of the route. Since is when the state began, or zero for RouteWorking.
	State RouteState `json:"state"`
	Since time.Time  `json:"since,omitzero"`
	// LastError is the last failure on the route, also of a route that works again. For RoutePaused,
	// LastError says until when, by whom and why. At most 1 KiB of valid UTF-8.
	LastError string `json:"last_error,omitempty"`
	// Sent counts the confirmed events of the topic since the relay knows the topic.
	Sent          int64   `json:"sent"`
	SentPerSecond float64 `json:"sent_per_second"`
	// RouteInFlight and RouteWaiting count the events of the route at the transport and in memory.
	RouteInFlight int `json:"route_in_flight"`
	RouteWaiting  int `json:"route_waiting"`
}

// Report is the argument of [RelayStore.ReportRelay].
type Report struct {
	RelayReport

	// Stalled are the topics that the relay cannot send to. Without StalledChanged, they are the
	// topics of the report before.
	Stalled        []StalledRoute
	StalledChanged bool
}

// Relay is a visible relay as an operator sees it.
type Relay struct {
	Name string
	// SeenUntil is until when the relay is visible without another heartbeat.
	SeenUntil time.Time
	// Shards are the shards whose lease the relay has, ascending.
	Shards []int
	// ReportedAt is when the relay wrote the report, or zero if the relay has written none, as a relay
	// of an earlier version of this library. A relay writes a report with a heartbeat if the report
	// has changed.
	ReportedAt time.Time
	RelayReport
}

// Encode returns r as JSON, for stores.
func (r *RelayReport) Encode() (string, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode the report: %w", err)
	}
	return string(data), nil
}

// Decode reads the result of [RelayReport.Encode], which was written at reportedAt by the database's
// clock. Decode moves the times in the report by the difference between that clock and the clock of
// the relay's process.
func (r *Relay) Decode(data string, reportedAt time.Time) error {
	r.ReportedAt = reportedAt
	if err := json.Unmarshal([]byte(data), &r.RelayReport); err != nil {
		return fmt.Errorf("decode the report of relay %q: %w", r.Name, err)
	}
	ahead := reportedAt.Sub(r.At)
	times := []*time.Time{&r.At, &r.StartedAt, &r.OldestInFlight, &r.LastConfirm}
	for i := range r.Topics {
		times = append(times, &r.Topics[i].Since)
	}
	for _, t := range times {
		if !t.IsZero() {
			*t = t.Add(ahead)
		}
	}
	return nil
}
