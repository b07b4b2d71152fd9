package statement

import "github.com/boxpair/boxpair/internal/fault"

// Op names a method of [outbox.RelayStore].
type Op uint8

// The methods: statements on leases come first, see [Op.OnLeases].
const (
	OpRenew Op = iota
	OpHeartbeat
	OpAcquire
	OpRelease
	OpClearRewind
	OpKeepLow
	OpAttest
	OpEndedWitnesses
	OpExpire
	OpFetch
	OpFetchKey
	OpWriters
	OpBlocked
	OpDue
	OpMark
	OpHeal
	OpPark
	OpFollow
	OpRetry
	OpSent
	OpFetchParked
	OpUndefer
	OpPauses
	OpTakeTokens
	OpReport
)

var opNames = [...]string{
	"renew", "heartbeat", "acquire", "release", "clear rewind", "keep low",
	"attest", "ended witnesses", "expire", "fetch", "fetch key", "writers",
	"blocked", "due", "mark", "heal", "park", "follow", "retry", "sent", "fetch parked", "undefer", "pauses", "take tokens", "report",
}

// String returns the name of the statement, for log records.
func (o Op) String() string { return opNames[o] }

// OnLeases tells whether the statement is about leases. Such a statement must end well before a
// lease does.
func (o Op) OnLeases() bool { return o <= OpExpire }

// Points returns the fault points before and after a statement that changes events or acquires
// leases.
func (o Op) Points() (before, after fault.Point) {
	switch o {
	case OpAcquire:
		return fault.BeforeLease, fault.Leased
	case OpMark:
		return fault.BeforeMark, fault.Marked
	case OpHeal, OpPark, OpFollow, OpRetry, OpSent, OpUndefer:
		return fault.BeforePark, fault.Parked
	default:
		return "", ""
	}
}
