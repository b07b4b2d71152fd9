package consumer

import (
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
)

// Observer has functions that are told what needs attention in this process, for alerts and for
// metrics. All functions are optional. An inbox calls its functions one after another, in the order
// of what happened, in a goroutine beside the work. So a slow function delays only later notices.
// 1024 notices may wait: further notices are dropped, and the drops are logged. A panic is logged.
// Waiting notices are lost with the process: what must not be missed is in the database
// ([Inbox.ListParked], [Inbox.Stats]).
type Observer struct {
	// OnDead is told of each message that became dead: no further attempt is made before an operator
	// redrives the message.
	OnDead func(MessageNotice)
	// OnParked is told of each message that was parked for a retry, once for every attempt that
	// parks it again, and of each message that was set aside as following, too old or altered. A
	// parked message that is put back after errors of the database is not told of.
	OnParked func(MessageNotice)
	// OnPaused is told of each consumer that was found paused with work to do, also when another pause
	// holds the consumer or the pause has changed, and of each consumer that goes on.
	OnPaused func(PauseNotice)
	// OnStalled is told, at most once a minute for each consumer, that a message was given up for now
	// because the database was in trouble for Config.MaxHold, and afterwards that the database works
	// again.
	OnStalled func(StallNotice)
}

// MessageNotice tells of a message that was parked or became dead.
type MessageNotice struct {
	ID            uuid.UUID // the dispatch ID
	Consumer      string
	Topic         string
	Key           string // as a store keeps it: a hash if the key is longer than 255 bytes
	CorrelationID string // at most 255 bytes of it
	// State is the state of the message: inbox.Dead for OnDead; inbox.Retrying, Following,
	// TooOldState or AlteredState for OnParked.
	State inbox.State
	// Attempts is how many attempts were counted. Zero for a message that follows.
	Attempts int
	// RetryIn is the time until the next attempt, of a message that is retrying.
	RetryIn time.Duration
	// Error is why, at most 1 KiB. Empty for a message that follows.
	Error string
}

// PauseNotice tells that a consumer is paused, or goes on.
type PauseNotice struct {
	Consumer string
	Paused   bool
	// Pause is the pause, the zero Pause if the consumer goes on.
	Pause control.Pause
}

// StallNotice tells that the database of a consumer is in trouble, or works again.
type StallNotice struct {
	Consumer string
	Stalled  bool
	// Error is the latest error, at most 1 KiB. Empty if the database works again.
	Error string
}

// notifyState tells of a message that is dead or parked now. p.State, Attempts, RetryIn and LastError
// count.
func (h *Handler[TX]) notifyState(in *incoming, p *inbox.Parking) {
	call := h.inbox.cfg.Observer.OnParked
	if p.State == inbox.Dead {
		call = h.inbox.cfg.Observer.OnDead
	}
	if call == nil {
		return
	}
	n := MessageNotice{
		ID: in.event.ID, Consumer: h.name, Topic: text.Clean(in.event.Topic, field.MaxKey), Key: in.order,
		CorrelationID: text.Clean(in.event.CorrelationID, field.MaxKey),
		State:         p.State, Attempts: p.Attempts, RetryIn: p.RetryIn, Error: p.LastError,
	}
	h.inbox.notices.Put(func() { call(n) })
}

// notifyPaused tells that the consumer is paused, or goes on if pause is nil.
func (h *Handler[TX]) notifyPaused(pause *control.Pause) {
	call := h.inbox.cfg.Observer.OnPaused
	if call == nil {
		return
	}
	n := PauseNotice{Consumer: h.name, Paused: pause != nil}
	if pause != nil {
		n.Pause = *pause
	}
	h.inbox.notices.Put(func() { call(n) })
}

// stalled tells that the database was in trouble for Config.MaxHold.
func (h *Handler[TX]) stalled(now time.Time, err error) {
	call := h.inbox.cfg.Observer.OnStalled
	if call == nil || !h.stallLimit.allow(now) {
		return
	}
	n := StallNotice{Consumer: h.name, Stalled: true, Error: field.Error(err)}
	h.stallTurn.Lock()
	defer h.stallTurn.Unlock()
	h.stall.Store(true)
	h.inbox.notices.Put(func() { call(n) })
}

// works takes note that the database has answered.
func (h *Handler[TX]) works() {
	if !h.stall.Load() {
		return
	}
	h.stallTurn.Lock()
	defer h.stallTurn.Unlock()
	if !h.stall.CompareAndSwap(true, false) {
		return
	}
	call, n := h.inbox.cfg.Observer.OnStalled, StallNotice{Consumer: h.name}
	h.inbox.notices.Put(func() { call(n) })
}

// succeeded takes note that a transaction of ref was committed.
func (h *Handler[TX]) succeeded(ref messageRef) {
	h.inbox.outages.success(ref)
	h.works()
}
