package producer

import "errors"

var (
	// ErrConflict is returned when an event is written whose dispatch ID the outbox
	// has with other content. The transaction cannot be committed any more.
	ErrConflict = errors.New("dispatch ID is taken by an event with other content")
	// ErrSecondWriter is returned when a second writer writes in one
	// transaction: both would count events from 0, and equal IDs would be
	// taken for repetitions.
	ErrSecondWriter = errors.New("transaction has another outbox writer already")
	// ErrNoIdentity is returned for an event from which no dispatch ID can be computed.
	ErrNoIdentity = errors.New("event has no identity: set Source with Version or IdempotencyKey, or Random")
	// ErrCommitUnknown is wrapped by the error of a COMMIT whose outcome is not
	// known, as when the connection was lost before the answer.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrBeyondHorizon is wrapped when events are to be sent again after the time until which
	// they may be (Config.ResendFor): consumers may have forgotten them, and will set them aside
	// as too old rather than apply them twice. Consumers that have forgotten nothing yet, like new ones, apply
	// them. Filter.Force and Replay.Force send them.
	ErrBeyondHorizon = errors.New("re-send horizon is over, consumers may have forgotten the event: use Force to send it all the same")
	// ErrNoSignal is returned by stores that cannot wake relays in other processes.
	ErrNoSignal = errors.New("store has no signal between processes")
)
