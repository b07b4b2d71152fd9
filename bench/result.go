package main

// Result is one measurement of one variant, as it is printed in a line of JSON. What could
// not be measured is left out.
type Result struct {
	Scenario string `json:"scenario"`
	Variant  string `json:"variant"`
	Round    int    `json:"round,omitempty"`
	// Messages were measured, in Seconds.
	Messages int     `json:"messages"`
	Seconds  float64 `json:"seconds"`
	// Rate is messages per second.
	Rate float64 `json:"rate"`
	// CPU seconds per 100,000 messages, of this process and its children, and of the servers.
	ClientCPU   float64  `json:"client_cpu_s_per_100k"`
	PostgresCPU *float64 `json:"postgres_cpu_s_per_100k,omitempty"`
	RabbitMQCPU *float64 `json:"rabbitmq_cpu_s_per_100k,omitempty"`
	// PeakRSS is the most memory that this process had in the measured part, in bytes.
	PeakRSS *float64 `json:"peak_rss_bytes,omitempty"`
	// WAL is bytes of write-ahead log per message. The server counts it, so nothing else may
	// write to it meanwhile.
	WAL *float64 `json:"wal_bytes_per_message,omitempty"`
	// Statements and RoundTrips are PostgreSQL's, per message, counted on the wire.
	Statements float64 `json:"statements_per_message"`
	RoundTrips float64 `json:"round_trips_per_message"`
	// Allocs are allocations of this process per message.
	Allocs float64 `json:"allocs_per_message"`
	// OtherLoad is the part of the machine that neither this process nor the servers used.
	OtherLoad *float64 `json:"other_load,omitempty"`
	// Took is seconds of the process that measured, with all that came before and after.
	Took float64 `json:"took_s,omitempty"`
	// Steps are seconds of the process's life: what was prepared and tidied around Seconds.
	Steps map[string]float64 `json:"steps_s,omitempty"`
	// Extra is what only this scenario measures.
	Extra map[string]float64 `json:"extra,omitempty"`
}
