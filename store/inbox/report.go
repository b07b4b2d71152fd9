package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Reporter is an optional part of a [Store] that shows operators which processes handle messages.
// The stores of this library have it.
type Reporter interface {
	// ReportHandlers replaces the reports of process p by reports, which are listed for ttl. Without
	// reports, the process is listed no longer. ReportHandlers also removes reports whose ttl is over.
	ReportHandlers(ctx context.Context, p Process, ttl time.Duration, reports []HandlerReport) error
	// ListHandlers reads the reports whose ttl is not over, by consumer and process.
	ListHandlers(ctx context.Context) ([]RunningHandler, error)
}

// Process is a process with handlers. The times of its reports are by the clock of the process when
// they are written, and [RunningHandler.Decode] turns them into times of the database.
type Process struct {
	// Name tells processes apart; at most 255 bytes.
	Name string `json:"-"`
	// At is when the process made the report.
	At time.Time `json:"at"`
	// Host is the name of the host, and Version the version of this library, or "" if it is not known.
	Host    string `json:"host"`
	Version string `json:"version"`
	// StartedAt is when the process made its inbox.
	StartedAt time.Time `json:"started_at"`
}

// HandlerReport is what a process tells of one of its handlers. Counts begin with the process. A
// time is zero if its event has not happened since.
type HandlerReport struct {
	// Consumer is the name of the consumer.
	Consumer string `json:"-"`
	// Topics are the topics of the messages, in the order of their first message; at most ten.
	Topics []string `json:"topics"`
	// InFlight counts the messages that are being handled, or are held.
	InFlight int `json:"in_flight"`
	// Applied counts applied messages, Duplicates copies that were acknowledged without running the
	// handler, and Failed counted attempts.
	Applied    int64 `json:"applied"`
	Duplicates int64 `json:"duplicates"`
	Failed     int64 `json:"failed"`
	// LastSuccess is when a message was last applied. LastFailure is when an attempt was last counted,
	// and LastError the error of the attempt, in at most 1 KiB of valid UTF-8.
	LastSuccess time.Time `json:"last_success,omitzero"`
	LastFailure time.Time `json:"last_failure,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	// Waiting counts the messages that wait at the broker and were not delivered yet, of the queues that
	// have delivered messages to the process. It is nil if no broker tells.
	Waiting *int `json:"waiting,omitempty"`
	// Window is how long dispatch IDs are remembered.
	Window time.Duration `json:"window,omitempty"`
	// CacheSize is how many dispatch IDs the window in memory may hold, CacheEntries how many it
	// holds, and CacheHits the number of Duplicates that it has told. All are 0 without a window in
	// memory.
	CacheSize    int   `json:"cache_size"`
	CacheEntries int   `json:"cache_entries"`
	CacheHits    int64 `json:"cache_hits"`
	// Paused says until when, by whom and why the consumer is paused, or is "" if it was not paused
	// when it had work last.
	Paused string `json:"paused,omitempty"`
}

// RunningHandler is a handler of a process as an operator sees it.
type RunningHandler struct {
	Process
	HandlerReport

	// ReportedAt is when the report was written, and ListedUntil until when it is listed without
	// another report.
	ReportedAt, ListedUntil time.Time
}

// storedReport is the JSON of a report.
type storedReport struct {
	Process
	HandlerReport
}

// EncodeReport returns a report as JSON, without the names of process and consumer, for stores.
func EncodeReport(p Process, r HandlerReport) (string, error) {
	data, err := json.Marshal(storedReport{p, r})
	if err != nil {
		return "", fmt.Errorf("encode the report: %w", err)
	}
	return string(data), nil
}

// Decode reads the result of [EncodeReport], which was written at reportedAt by the database's
// clock. Decode moves the times in the report by the difference between that clock and the clock of
// the process. Decode keeps the names of process and consumer.
func (h *RunningHandler) Decode(data string, reportedAt time.Time) error {
	r := storedReport{h.Process, h.HandlerReport}
	if err := json.Unmarshal([]byte(data), &r); err != nil {
		return fmt.Errorf("decode the report of consumer %q: %w", h.Consumer, err)
	}
	ahead := reportedAt.Sub(r.At)
	for _, t := range []*time.Time{&r.At, &r.StartedAt, &r.LastSuccess, &r.LastFailure} {
		if !t.IsZero() {
			*t = t.Add(ahead)
		}
	}
	h.Process, h.HandlerReport, h.ReportedAt = r.Process, r.HandlerReport, reportedAt
	return nil
}
