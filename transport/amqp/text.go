package amqp

import "github.com/boxpair/boxpair/internal/choice"

var (
	topologyWords  = []string{Declare: "declare", Passive: "passive", NoTopology: "none"}
	queueTypeWords = []string{Quorum: "quorum", Classic: "classic"}
)

// MarshalText returns "declare", "passive" or "none", and an error for any other value.
func (t Topology) MarshalText() ([]byte, error) {
	return choice.Text("Topology", topologyWords, t)
}

// UnmarshalText takes what MarshalText returns, and nothing else.
func (t *Topology) UnmarshalText(text []byte) error {
	return choice.Parse("Topology", topologyWords, text, t)
}

// MarshalText returns "quorum" or "classic", and an error for any other value.
func (q QueueType) MarshalText() ([]byte, error) {
	return choice.Text("QueueType", queueTypeWords, q)
}

// UnmarshalText takes what MarshalText returns, and nothing else.
func (q *QueueType) UnmarshalText(text []byte) error {
	return choice.Parse("QueueType", queueTypeWords, text, q)
}
