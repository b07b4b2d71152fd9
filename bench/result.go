package main

// Result is one measurement of one variant, printed as a line of JSON. Unknown figures are left
// out.
type Result struct {
	Scenario string `json:"scenario"`
	Variant  string `json:"variant"`
	Round    int    `json:"round,omitempty"`
	// Messages is the number of measured messages, and Seconds their duration.
	Messages int     `json:"messages"`
	Seconds  float64 `json:"seconds"`
	// Rate is messages per second.
	Rate float64 `json:"rate"`
	// CPU seconds per 100,000 messages, of this process and its children, and of the servers.
	ClientCPU   float64  `json:"client_cpu_s_per_100k"`
	PostgresCPU *float64 `json:"postgres_cpu_s_per_100k,omitempty"`
	RabbitMQCPU *float64 `json:"rabbitmq_cpu_s_per_100k,omitempty"`
	// PeakRSS is the peak memory of this process in the measured part, in bytes.
	PeakRSS *float64 `json:"peak_rss_bytes,omitempty"`
	// WAL is bytes of write-ahead log per message. The server counts all writers, so no other
	// program may write to it meanwhile.
	WAL *float64 `json:"wal_bytes_per_message,omitempty"`
	// Statements and RoundTrips count PostgreSQL's per message, on the wire.
	Statements float64 `json:"statements_per_message"`
	RoundTrips float64 `json:"round_trips_per_message"`
	// Allocs are allocations of this process per message.
	Allocs float64 `json:"allocs_per_message"`
	// OtherLoad is the share of the machine used by other programs than this process and the
	// servers.
	OtherLoad *float64 `json:"other_load,omitempty"`
	// Took is the duration of the measuring process in seconds, with preparation and clean-up.
	Took float64 `json:"took_s,omitempty"`
	// Steps are the durations in seconds of the steps of preparation and clean-up around Seconds.
	Steps map[string]float64 `json:"steps_s,omitempty"`
	// Extra holds figures that only this scenario has.
	Extra map[string]float64 `json:"extra,omitempty"`
}
