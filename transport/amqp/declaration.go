package amqp

import "github.com/boxpair/boxpair/internal/choice"

// Topology says who declares exchanges, queues and bindings.
type Topology uint8

const (
	// Declare declares what is missing. The user needs the configure permission.
	Declare Topology = iota
	// Passive checks that exchanges and queues exist, and declares nothing. It cannot check
	// bindings.
	Passive
	// NoTopology neither declares nor checks.
	NoTopology
)

var topologyWords = []string{Declare: "declare", Passive: "passive", NoTopology: "none"}

// MarshalText returns "declare", "passive" or "none", and an error for any other value.
func (t Topology) MarshalText() ([]byte, error) {
	return choice.Text("Topology", topologyWords, t)
}

// UnmarshalText accepts exactly the texts that MarshalText returns.
func (t *Topology) UnmarshalText(text []byte) error {
	return choice.Parse("Topology", topologyWords, text, t)
}

// QueueType is the type of the queues that are declared.
type QueueType uint8

const (
	// Quorum queues are replicated, and confirm a message when it is on disk.
	Quorum QueueType = iota
	// Classic queues are the type that stock watermill-amqp declares with RabbitMQ's default
	// configuration. They confirm a message before it is on disk.
	Classic
)

var queueTypeWords = []string{Quorum: "quorum", Classic: "classic"}

// MarshalText returns "quorum" or "classic", and an error for any other value.
func (q QueueType) MarshalText() ([]byte, error) {
	return choice.Text("QueueType", queueTypeWords, q)
}

// UnmarshalText accepts exactly the texts that MarshalText returns.
func (q *QueueType) UnmarshalText(text []byte) error {
	return choice.Parse("QueueType", queueTypeWords, text, q)
}
