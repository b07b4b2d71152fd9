package consumer

import (
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport/signature"
)

// Config configures an [Inbox].
type Config struct {
	// Service is the name of the service, without a slash. The name of a consumer is Service, a
	// slash and the name of the handler. Under a new name a consumer starts anew, without applied
	// messages. Required; at most 100 bytes.
	Service string `yaml:"service" env:"SERVICE"`

	// Window is how long dispatch IDs are remembered in the database. Window must exceed the
	// longest time after which a producer may send an event again. Defaults to 14 days.
	Window time.Duration `yaml:"window" env:"WINDOW"`
	// ShortWindow is the policy for signed messages with a horizon beyond Window: their producer
	// may send an event again for longer (producer.Config.ResendFor). Without a Verifier a horizon
	// may be forged, and is only reported. Defaults to [RefuseShortWindow].
	ShortWindow ShortWindow `yaml:"short_window" env:"SHORT_WINDOW"`
	// MaxHorizon is the longest believed horizon: any sender could claim more. A longer horizon
	// counts as MaxHorizon. Defaults to 90 days.
	MaxHorizon time.Duration `yaml:"max_horizon" env:"MAX_HORIZON"`
	// CacheSize is how many dispatch IDs each handler remembers in memory: a remembered duplicate
	// costs no round trip. Package dedupe tells the cost of an entry. Defaults to
	// [dedupe.DefaultSize]. -1 remembers no IDs.
	CacheSize int `yaml:"cache_size" env:"CACHE_SIZE"`

	// MaxHold is how long a message is held while the database is in trouble, the consumer is paused
	// or its rate is limited, before Consume returns an error. Defaults to 1 minute.
	MaxHold time.Duration `yaml:"max_hold" env:"MAX_HOLD"`
	// PollInterval is how often [Inbox.Run] looks for parked messages that became due unnoticed, as
	// by another process. Defaults to 5 seconds.
	PollInterval time.Duration `yaml:"poll_interval" env:"POLL_INTERVAL"`
	// ForgetInterval is how often [Inbox.Run] removes old dispatch IDs, discarded messages and
	// attempts. Defaults to 10 minutes.
	ForgetInterval time.Duration `yaml:"forget_interval" env:"FORGET_INTERVAL"`
	// RunElsewhere tells that another process of the service calls [Inbox.Run]. Otherwise a process
	// that parks a message for a retry or records an effect, and has called neither Run nor
	// RunOnce, logs an ERROR, once a minute at most. Defaults to false.
	RunElsewhere bool `yaml:"run_elsewhere" env:"RUN_ELSEWHERE"`
	// HistoryFor is how long attempts are kept one by one ([Inbox.Attempts]), whatever the state of
	// their message. Defaults to Window.
	HistoryFor time.Duration `yaml:"history_for" env:"HISTORY_FOR"`
	// MaxClockStep is how far the database's clock may advance between two passes that forget.
	// After a greater step, as of a clock that jumped ahead, the pass is refused and logged, unless
	// the clock of this process confirms the step, as after a standstill of the service. Defaults
	// to half of Window.
	MaxClockStep time.Duration `yaml:"max_clock_step" env:"MAX_CLOCK_STEP"`

	// Verifier makes every handler take only messages signed with one of its keys, as by a relay
	// with relay.Config.Signer, for the handler's topic. Any other message is kept as dead under a
	// separate dispatch ID and never run, even if redriven. A handler gets only signed metadata.
	// Defaults to nil: messages need no signature.
	Verifier *signature.Verifier `yaml:"-" env:"-"`

	// Observer is told of dead and parked messages, of pauses and of trouble with the database.
	// Defaults to no functions.
	Observer Observer `yaml:"-" env:"-"`

	// Logger receives failures, parked messages and changes by operators. Defaults to
	// [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

// ShortWindow is the policy of an inbox that forgets sooner than a producer may send an event
// again.
type ShortWindow uint8

const (
	// RefuseShortWindow refuses to start: Run, Check and Consume return an error that wraps
	// [ErrShortWindow]. A long horizon that becomes known in a running inbox is reported, and
	// refused at the next start.
	RefuseShortWindow ShortWindow = iota
	// ReportShortWindow starts, and reports the short window in the log, in [inbox.Stats] and in
	// [Counters].
	ReportShortWindow
)

// HandlerConfig configures a [Handler].
type HandlerConfig struct {
	// Timeout bounds a transaction: claim, handler and commit. The handler's context ends with the
	// transaction. A transaction that messages share without Group.Size has a second. Defaults to 30
	// seconds.
	Timeout time.Duration `yaml:"timeout" env:"TIMEOUT"`
	// LockTimeout bounds the wait for another transaction with a claim on the same message.
	// Defaults to 5 seconds, or Timeout if that is shorter.
	LockTimeout time.Duration `yaml:"lock_timeout" env:"LOCK_TIMEOUT"`
	// Isolation is the isolation level of the transaction. Defaults to [inbox.ReadCommitted].
	Isolation inbox.Isolation `yaml:"isolation" env:"ISOLATION"`

	// Optimistic runs the handler before the database is asked for the claim: claim, queued
	// statements and COMMIT then take one round trip instead of two. In return the handler also
	// runs for a duplicate that is not in the window, and for a message that is too old or has to
	// wait: its changes in the transaction are rolled back, but not its effects elsewhere.
	// Optimistic is for handlers that only queue statements (AtCommit of store/postgres) and write
	// events ([Work.Write]), and saves nothing for other handlers. A redelivered message, and every
	// attempt but the first, is claimed first all the same. Only store/postgres takes notice of
	// Optimistic, at [inbox.ReadCommitted]. Groups exclude Optimistic. Defaults to false.
	Optimistic bool `yaml:"optimistic" env:"OPTIMISTIC"`

	// StoreFirst stores a delivered message in the database and acknowledges the message at once.
	// [Inbox.Run], in any process of the service, handles stored messages as it handles parked
	// messages: Parked.Concurrency at once, with Order.ByKey one after another for each key, in the
	// order of storing. So a transport with one message in flight does not bound the throughput.
	// In return each message takes two transactions. Consume waits for Run for 5 seconds, and then
	// returns [ErrNotRunning]. Messages of a key are stored in the order of delivery if the
	// transport delivers them one after another, to one process at a time. Groups and Optimistic
	// exclude StoreFirst. Defaults to false.
	StoreFirst bool `yaml:"store_first" env:"STORE_FIRST"`

	// Topic is the topic of the messages. Defaults to the topic that Watermill's router names in a
	// message's context.
	Topic string `yaml:"topic" env:"TOPIC"`
	// DeriveID accepts messages of other publishers whose message UUID is no UUID but, for example,
	// a ULID. Their dispatch ID is idgen.OfKey("", topic, UUID, 0). The publisher must never give
	// one UUID to two messages of a topic. Defaults to false: such messages are parked as dead. A
	// message with an empty UUID is always parked as dead.
	DeriveID bool `yaml:"derive_id" env:"DERIVE_ID"`

	// MaxPerSecond is how often the handler may be run in a second, by all processes of the service
	// together. The limit holds for delivered and for parked messages, every attempt counts, and each
	// message of a group; so does a copy that only the database knows. After a quiet time the messages
	// of a second may be handled at once. A message waits for its turn for Config.MaxHold at the
	// longest. A process asks the database for its share about five times a second, and at most ten
	// times. All processes must have the same limit. At most 1e9. Defaults to 0: no limit.
	MaxPerSecond float64 `yaml:"max_per_second" env:"MAX_PER_SECOND"`

	// Order is the order of messages of one key.
	Order OrderConfig `yaml:"order" envPrefix:"ORDER_"`
	// Retry is how often a failing message is handled.
	Retry RetryConfig `yaml:"retry" envPrefix:"RETRY_"`
	// Parked is when messages that are parked for a retry are handled.
	Parked ParkedConfig `yaml:"parked" envPrefix:"PARKED_"`
	// Group is how many messages share a transaction.
	Group GroupConfig `yaml:"group" envPrefix:"GROUP_"`
}

// OrderConfig is the order of messages of one key.
type OrderConfig struct {
	// ByKey makes later messages of a key wait behind a parked message until the parked message is
	// applied, dead or discarded. A dead message never holds its key. Defaults to false: a parked
	// message delays no other message.
	ByKey bool `yaml:"by_key" env:"BY_KEY"`
	// Key returns the key of a message. Defaults to the producer's key ([transport.MetaKey]). A
	// subscriber that keeps order has a separate setting for the key. With ByKey, messages that the
	// subscriber orders by another key are refused with [ErrOtherKey].
	Key func(msg *message.Message) string `yaml:"-" env:"-"`
}

// RetryConfig is how often a failing message is handled.
type RetryConfig struct {
	// QuickAttempts is how many attempts in a row are made before the message is parked. Defaults
	// to 3.
	QuickAttempts int `yaml:"quick_attempts" env:"QUICK_ATTEMPTS"`
	// QuickBackoff is the wait after the first quick attempt, half of it at random. The wait
	// doubles with every attempt. Defaults to 50 milliseconds.
	QuickBackoff time.Duration `yaml:"quick_backoff" env:"QUICK_BACKOFF"`
	// MaxAttempts is how many counted attempts make a message dead. Defaults to 10.
	MaxAttempts int `yaml:"max_attempts" env:"MAX_ATTEMPTS"`
	// MaxSoloStarts is how often a message that may have killed a process is started alone in its
	// handler before the message is dead. An earlier start, beside other messages or in a group,
	// does not count. Defaults to 3.
	MaxSoloStarts int `yaml:"max_solo_starts" env:"MAX_SOLO_STARTS"`
}

// ParkedConfig is when messages that are parked for a retry are handled.
type ParkedConfig struct {
	// MinBackoff is how long a message is parked at first, half of it at random. The time
	// quadruples with every attempt, up to MaxBackoff. Defaults to 1 second.
	MinBackoff time.Duration `yaml:"min_backoff" env:"MIN_BACKOFF"`
	// MaxBackoff is how long a message is parked at most. Defaults to 15 minutes.
	MaxBackoff time.Duration `yaml:"max_backoff" env:"MAX_BACKOFF"`
	// Concurrency is how many parked messages are handled at once, besides delivered messages. Each
	// takes a connection to the database. Defaults to 4, or 16 with StoreFirst.
	Concurrency int `yaml:"concurrency" env:"CONCURRENCY"`
}

// GroupConfig is how many messages share a transaction, which saves commits. See Groups in the package
// comment.
type GroupConfig struct {
	// Size is the maximum of messages in one transaction: a transaction takes the messages that
	// wait when it begins. The subscriber has to deliver Size messages at the same time, and twice
	// as many for transactions to overlap. 1 is a transaction for each message. Defaults to 0: up to
	// 64 messages share a transaction under load, while that is no worse than a transaction for each.
	Size int `yaml:"size" env:"SIZE"`
	// Wait is how long a transaction of fewer than Size messages is delayed for more messages.
	// Needs a Size. Defaults to 0: no delay.
	Wait time.Duration `yaml:"wait" env:"WAIT"`
	// Concurrency is how many transactions of groups run at once. A transaction begins beside
	// others only with Size messages, or when a message has waited for half a second. Needs a Size.
	// Defaults to 4.
	Concurrency int `yaml:"concurrency" env:"CONCURRENCY"`
}

const (
	maxService = 100
	maxName    = 150

	defaultWindow         = 14 * 24 * time.Hour
	defaultHold           = time.Minute
	defaultHorizon        = 90 * 24 * time.Hour
	horizonStep           = time.Hour
	aheadTolerance        = 5 * time.Minute
	maxRate               = 1e9 // the arithmetic of some database overflows with more
	reportPause           = time.Minute
	defaultPoll           = 5 * time.Second
	defaultForget         = 10 * time.Minute
	defaultTimeout        = 30 * time.Second
	defaultLockTimeout    = 5 * time.Second
	defaultQuickAttempts  = 3
	defaultQuickBackoff   = 50 * time.Millisecond
	defaultMaxAttempts    = 10
	defaultMinBackoff     = time.Second
	defaultMaxBackoff     = 15 * time.Minute
	defaultSoloStarts     = 3
	defaultParked         = 4
	defaultStored         = 16
	defaultBatch          = 64
	defaultGroups         = 4
	groupPause            = time.Minute
	groupPatience         = 500 * time.Millisecond
	groupHeadroom         = 8
	backoffGrowth         = 4
	conflictWait          = 10 * time.Millisecond
	outageWait            = 100 * time.Millisecond
	maxWait               = 5 * time.Second
	databaseErrorLimit    = 5
	outageMemory          = 30 * time.Second
	maxBlames             = 1 << 12
	idleGrace             = 10 * time.Second
	forgetGrace           = time.Minute
	forgetMost            = 10_000
	forgetTime            = 50 * time.Millisecond
	forgetShare           = 0.5
	returnedSize          = 1 << 12
	defaultFilterLimit    = 100
	isolationLevels       = inbox.Serializable
	dueBatch              = 64
	dueAhead              = 8
	leftoverShare         = 16
	firstSkip             = 50 * time.Millisecond
	dueFailureWait        = time.Second
	dueFailureWaitCeiling = 30 * time.Second
)

func (c Config) withDefaults() (Config, error) {
	var p field.Problems
	p.Text("Service", c.Service, maxService)
	if strings.Contains(c.Service, "/") {
		p.Addf("Service: %q contains a slash, which separates it from the names of handlers", c.Service)
	}
	p.Duration("Window", &c.Window, defaultWindow)
	p.Duration("MaxHorizon", &c.MaxHorizon, defaultHorizon)
	if c.ShortWindow > ReportShortWindow {
		p.Addf("ShortWindow: %d is not a policy", c.ShortWindow)
	}
	p.Duration("MaxHold", &c.MaxHold, defaultHold)
	p.Duration("PollInterval", &c.PollInterval, defaultPoll)
	p.Duration("ForgetInterval", &c.ForgetInterval, defaultForget)
	p.Duration("HistoryFor", &c.HistoryFor, c.Window)
	p.Duration("MaxClockStep", &c.MaxClockStep, c.Window/2)
	if c.CacheSize == 0 {
		c.CacheSize = dedupe.DefaultSize
	}
	if c.CacheSize < -1 {
		p.Addf("CacheSize: %d is neither a size nor -1", c.CacheSize)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, p.Err()
}

func (c HandlerConfig) withDefaults() (HandlerConfig, error) {
	var p field.Problems
	p.Duration("Timeout", &c.Timeout, defaultTimeout)
	p.Duration("LockTimeout", &c.LockTimeout, min(defaultLockTimeout, c.Timeout))
	if c.LockTimeout > c.Timeout {
		p.Addf("LockTimeout: %v is longer than the Timeout of %v", c.LockTimeout, c.Timeout)
	}
	if c.Isolation > isolationLevels {
		p.Addf("Isolation: %d is not an isolation level", c.Isolation)
	}
	c.checkWay(&p)
	if c.Topic != "" {
		p.Text("Topic", c.Topic, field.MaxKey)
	}
	if c.Group.Size <= 1 && (c.Group.Wait != 0 || c.Group.Concurrency != 0) {
		p.Addf("Group.Size: is needed for Group.Wait and Group.Concurrency")
	}
	if c.MaxPerSecond < 0 || c.MaxPerSecond > maxRate || math.IsNaN(c.MaxPerSecond) {
		p.Addf("MaxPerSecond: %v is not between 0 and %v", c.MaxPerSecond, float64(maxRate))
	}
	p.Number("Group.Size", &c.Group.Size, 1)
	p.Duration("Group.Wait", &c.Group.Wait, 0)
	if c.Group.Wait > 0 && c.Group.Wait >= c.Timeout {
		p.Addf("Group.Wait: %v is not shorter than the Timeout of %v", c.Group.Wait, c.Timeout)
	}
	p.Number("Group.Concurrency", &c.Group.Concurrency, defaultGroups)
	p.Number("Retry.QuickAttempts", &c.Retry.QuickAttempts, defaultQuickAttempts)
	p.Duration("Retry.QuickBackoff", &c.Retry.QuickBackoff, defaultQuickBackoff)
	p.Number("Retry.MaxAttempts", &c.Retry.MaxAttempts, defaultMaxAttempts)
	p.Duration("Parked.MinBackoff", &c.Parked.MinBackoff, defaultMinBackoff)
	p.Duration("Parked.MaxBackoff", &c.Parked.MaxBackoff, max(defaultMaxBackoff, c.Parked.MinBackoff))
	if c.Parked.MaxBackoff < c.Parked.MinBackoff {
		p.Addf("Parked.MaxBackoff: %v is shorter than the Parked.MinBackoff of %v", c.Parked.MaxBackoff, c.Parked.MinBackoff)
	}
	p.Number("Retry.MaxSoloStarts", &c.Retry.MaxSoloStarts, defaultSoloStarts)
	concurrency := defaultParked
	if c.StoreFirst {
		concurrency = defaultStored
	}
	p.Number("Parked.Concurrency", &c.Parked.Concurrency, concurrency)
	return c, p.Err()
}

// checkWay adds the ways of handling that do not go together.
func (c *HandlerConfig) checkWay(p *field.Problems) {
	if c.Optimistic && c.Group.Size > 1 {
		p.Addf("Optimistic: does not go with a Group.Size of %d", c.Group.Size)
	}
	if c.StoreFirst && c.Optimistic {
		p.Addf("StoreFirst: does not go with Optimistic, since no delivered message is handled")
	}
	if c.StoreFirst && c.Group.Size > 1 {
		p.Addf("StoreFirst: does not go with a Group.Size of %d, since parked messages are in no group", c.Group.Size)
	}
}

// mayShare tells whether messages may share transactions without Group.Size.
func (c *HandlerConfig) mayShare() bool {
	return !c.Optimistic && !c.StoreFirst && c.MaxPerSecond == 0 && c.Isolation == inbox.ReadCommitted
}
