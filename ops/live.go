package ops

import (
	"encoding/json"
	"net/http"
	"time"
)

// series are the last samples of an outbox, taken while a page is open.
type series struct {
	samples []sample
	highest int64 // the highest number of an event at the last sample, or 0 if unknown
}

// sample is the state of an outbox at one moment, with the rates since the sample before. An unknown
// rate is nil.
type sample struct {
	At        time.Time
	Waiting   int64
	Dead      int64
	Deferred  int64
	Oldest    time.Duration
	Written   *float64 // events per second
	Delivered *float64
}

const (
	// mostSamples is how many samples are kept: some minutes of looking.
	mostSamples = 300
	// longestGap is the longest gap between two samples of one series.
	longestGap = time.Minute
)

// add takes a sample. Event numbers rise by one with each written event, but rolled back transactions
// leave gaps: the rates are approximate.
func (s *series) add(now *outboxState, highest int64) {
	st := &now.Stats
	next := sample{At: now.At, Waiting: st.Pending + st.Retrying + st.Following, Dead: st.Dead, Deferred: st.Deferred, Oldest: st.OldestPending}
	if n := len(s.samples); n > 0 && now.At.Sub(s.samples[n-1].At) > longestGap {
		s.samples = nil
	}
	if n := len(s.samples); n > 0 && s.highest > 0 && highest >= s.highest {
		before := &s.samples[n-1]
		seconds := now.At.Sub(before.At).Seconds()
		written := float64(highest - s.highest)
		open := func(x *sample) int64 { return x.Waiting + x.Dead + x.Deferred }
		delivered := max(0, written-float64(open(&next)-open(before)))
		if rate := written / seconds; seconds > 0 {
			next.Written = &rate
		}
		if rate := delivered / seconds; seconds > 0 && !st.PendingCapped {
			next.Delivered = &rate
		}
	}
	if len(s.samples) == mostSamples {
		s.samples = append(s.samples[:0], s.samples[1:]...)
	}
	s.samples, s.highest = append(s.samples, next), highest
}

// curves are the samples of an outbox for a chart.
type curves struct {
	Times     []int64    `json:"times"` // seconds
	Waiting   []int64    `json:"waiting"`
	Written   []*float64 `json:"written"`
	Delivered []*float64 `json:"delivered"`
}

// live answers with the samples of an outbox, and takes a sample if the last sample is a second old.
func (h *Handler) live(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("outbox")
	sources, err := h.outboxNamed(name)
	if err != nil || name == "" {
		http.Error(w, "There is no such outbox.", http.StatusNotFound)
		return
	}
	s := sources[0]
	if _, err := s.read(r.Context()); err != nil {
		h.cfg.Logger.ErrorContext(r.Context(), "state of an outbox could not be read", "outbox", s.Name, "error", err)
		http.Error(w, "The state of the outbox could not be read.", http.StatusBadGateway)
		return
	}
	c := curves{Times: []int64{}, Waiting: []int64{}, Written: []*float64{}, Delivered: []*float64{}}
	s.mu.Lock()
	for i := range s.series.samples {
		x := &s.series.samples[i]
		c.Times, c.Waiting = append(c.Times, x.At.Unix()), append(c.Waiting, x.Waiting)
		c.Written, c.Delivered = append(c.Written, x.Written), append(c.Delivered, x.Delivered)
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(c)
}

// latest returns the newest sample, or nil.
func (s *outboxSource) latest() *sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.series.samples) == 0 {
		return nil
	}
	last := s.series.samples[len(s.series.samples)-1]
	return &last
}
