package soak

import (
	"fmt"
	"time"
)

// Report is the result of a run. Its JSON is one line.
type Report struct {
	Seed     uint64  `json:"seed"`
	Batches  bool    `json:"batches"`     // Config.Batches
	Stored   bool    `json:"store_first"` // Config.StoreFirst
	Seconds  float64 `json:"seconds"`     // of load and faults
	Messages int64   `json:"messages"`
	Rate     float64 `json:"messages_per_second"`

	// The faults.
	Kills      int `json:"kills"`
	Stops      int `json:"stops"`
	PGCrashes  int `json:"pg_crashes"`
	RabbitKill int `json:"rabbit_kills"`
	Partitions int `json:"partitions"`
	Injected   int `json:"duplicates_injected"`
	// Pauses counts the processes that an operator stopped in order for a while.
	Pauses int `json:"pauses"`
	// Misbehaved counts the misbehaviour of handlers, by kind, in the reports of processes.
	Misbehaved map[string]int64 `json:"handlers"`
	// Deploys counts the simultaneous kills of all consumers and relays.
	Deploys int `json:"deploys"`
	// Unheard counts the events that had no queue until the end of the faults, and arrived
	// afterwards.
	Unheard int64 `json:"unheard"`
	// Replayed, Redriven and Discarded count the work of operators, and Removed the work of the
	// janitor, in the reports of processes.
	Replayed  int64 `json:"replayed"`
	Redriven  int64 `json:"redriven"`
	Discarded int64 `json:"discarded"`
	// RedrivenLate counts the dead messages that were redriven after later messages of their keys
	// had been applied.
	RedrivenLate int64 `json:"redriven_late"`
	Removed      int64 `json:"removed"`
	// Suppressed counts the copies that consumers acknowledged without running the handler, in the
	// reports of processes. Seen is the least number of deliveries beyond the first.
	Seen       int64 `json:"duplicates_seen"`
	Suppressed int64 `json:"duplicates_suppressed"`
	ByWindow   int64 `json:"duplicates_suppressed_in_memory"`

	// The counts that must be 0.
	Lost       int64  `json:"lost"`
	Repeated   int64  `json:"duplicate_effects"`
	Unordered  int64  `json:"order_violations"`
	Phantom    int64  `json:"phantom"`
	Torn       int64  `json:"torn"`
	Unclaimed  int64  `json:"unclaimed"`
	LossBound  string `json:"upper_bound_95"`
	Parked     int64  `json:"parked"`
	Unknown    int64  `json:"commits_unknown"`
	SoloStarts int64  `json:"solo_starts"`

	Drained bool    `json:"drained"`
	Drain   float64 `json:"drain_seconds"`
	// Verified is the duration of the verification.
	Verified float64 `json:"verify_seconds"`
	// Stall is the longest time without any effect. Slowest is the longest time from the write of
	// an event to its effect: the longest outage, and the time to work off its backlog.
	Stall   float64 `json:"longest_stall_seconds"`
	Slowest float64 `json:"longest_outage_to_drain_seconds"`
	P50     float64 `json:"p50_seconds"`
	P99     float64 `json:"p99_seconds"`

	// RSSSlope is the growth of processes' memory in MB per minute, over RSSMinutes of processes
	// that were spared from kills. RSSError is its standard error.
	RSSSlope   float64            `json:"rss_slope_mb_per_minute"`
	RSSError   float64            `json:"rss_slope_error_mb_per_minute"`
	RSSMinutes float64            `json:"rss_minutes"`
	PeakHeapMB map[string]float64 `json:"peak_heap_mb"`

	Versions map[string]string `json:"versions"`
	Settings map[string]string `json:"settings"`

	// Violations are broken invariants; Missing is the required work that was not done.
	Violations []string `json:"violations"`
	Missing    []string `json:"missing"`
	Valid      bool     `json:"valid"`
}

// Passed tells whether enough work was done and no violation was found.
func (r *Report) Passed() bool { return r.Valid && len(r.Violations) == 0 }

const (
	mostHeapMB  = 256
	mostSlopeMB = 3 // per minute
	leastSlope  = 5 // minutes, of which a slope says something
	surely      = 3 // standard errors: of a thousand runs, one differs as much by chance
)

// judge completes the report.
func (r *Report) judge(cfg *Config, failed []string) {
	r.Violations, r.Missing = []string{}, []string{}
	for _, v := range []struct {
		what string
		n    int64
	}{
		{"messages lost", r.Lost}, {"effects repeated", r.Repeated}, {"effects out of order", r.Unordered},
		{"effects of nothing", r.Phantom}, {"changes without their event, or the reverse", r.Torn},
		{"effects without a claim, or the reverse", r.Unclaimed},
	} {
		if v.n != 0 {
			r.violation("%d %s", v.n, v.what)
		}
	}
	if !r.Drained || r.Drain > cfg.DrainLimit.Seconds() {
		r.violation("not at rest %.0f s after the faults", r.Drain)
	}
	for role, mb := range r.PeakHeapMB {
		if mb > mostHeapMB {
			r.violation("a %s had a heap of %.0f MB", role, mb)
		}
	}
	if r.RSSMinutes >= leastSlope && r.RSSSlope > mostSlopeMB && r.RSSSlope > surely*r.RSSError {
		r.violation("memory grew by %.1f MB per minute, with a standard error of %.1f", r.RSSSlope, r.RSSError)
	}
	for _, text := range failed {
		r.violation("%s", text)
	}
	r.Missing = append(r.Missing, r.needs(cfg.Duration)...)
	r.Valid = len(r.Missing) == 0
	if r.Messages > 0 && r.Lost+r.Repeated+r.Unordered+r.Phantom+r.Torn+r.Unclaimed == 0 {
		r.LossBound = fmt.Sprintf("0 of %d: fewer than %.1e per message, with a confidence of 95 %%", r.Messages, 3/float64(r.Messages))
	}
}

func (r *Report) violation(format string, args ...any) {
	r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
}

// needs returns the work that is missing for the zeros to be evidence: the minimum is the work of a
// busy machine with two cores.
func (r *Report) needs(d time.Duration) (missing []string) {
	minutes := d.Minutes()
	for _, n := range []struct {
		what string
		did  int64
		per  float64 // minute
	}{
		{"messages", r.Messages, 8_000}, {"kills", int64(r.Kills), 50}, {"stops", int64(r.Stops), 1}, {"PostgreSQL crashes", int64(r.PGCrashes), 2},
		{"RabbitMQ kills", int64(r.RabbitKill), 1}, {"partitions", int64(r.Partitions), 4},
		{"pauses", int64(r.Pauses), 1}, {"handlers that fail", r.Misbehaved["failed"], 1}, {"handlers that swallow an error", r.Misbehaved["swallowed"], 1},
		{"handlers that panic", r.Misbehaved["panicked"], .5}, {"handlers that end their transaction", r.Misbehaved["ended"], .5},
		{"handlers that hang", r.Misbehaved["hung"], .1}, {"messages discarded", r.Discarded, .2},
		{"copies suppressed", r.Suppressed, 300}, {"events without a queue", r.Unheard, 300}, {"events replayed", r.Replayed, 100},
		{"events removed", r.Removed, 100},
	} {
		if least := int64(n.per * minutes); n.did < least {
			missing = append(missing, fmt.Sprintf("%d %s, fewer than %d", n.did, n.what, least))
		}
	}
	return missing
}
