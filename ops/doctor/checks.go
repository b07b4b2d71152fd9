package doctor

// Check is the name of a check.
type Check string

// The checks of PostgreSQL as a server.
const (
	Reach               Check = "reach"                // the database or the broker answers
	Clock               Check = "clock"                // clocks agree
	Connections         Check = "connections"          // all pools fit into max_connections
	ReadOnly            Check = "read-only"            // the server takes writes
	Durability          Check = "durability"           // a commit survives a crash
	Unlogged            Check = "unlogged"             // the tables survive a crash
	Isolation           Check = "isolation"            // the default isolation level costs no repetitions
	Autovacuum          Check = "autovacuum"           // autovacuum works on the tables
	DeadRows            Check = "dead-rows"            // vacuum removes what was deleted
	OldTransaction      Check = "old-transaction"      // no transaction is open for long
	PreparedTransaction Check = "prepared-transaction" // no prepared transaction is left behind
	ReplicationSlot     Check = "replication-slot"     // no slot keeps log and rows
	StandbyFeedback     Check = "standby-feedback"     // no standby keeps rows
	InvalidIndex        Check = "invalid-index"        // every index is complete
	RoleWide            Check = "role-wide"            // services own nothing and are no superusers
	RoleNarrow          Check = "role-narrow"          // roles have all grants of their part
)

// The checks of tables, in PostgreSQL and SQLite.
const (
	Migrations   Check = "migrations"    // no migration is missing
	Sequence     Check = "sequence"      // event numbers ascend
	Relays       Check = "relays"        // a relay runs, and owns every shard
	ExpiredLease Check = "expired-lease" // no relay died and kept its shards
	Waiting      Check = "waiting"       // nothing waits for long
	DeadLetters  Check = "dead-letters"  // nothing waits for an operator
	Effects      Check = "effects"       // no effect is uncertain or dead
	Routes       Check = "routes"        // relays can send to every topic
	Pauses       Check = "pauses"        // nothing is paused
	Window       Check = "window"        // consumers remember for longer than events are sent again
	IdleConsumer Check = "idle-consumer" // a process runs for every registered consumer
	SharedQueue  Check = "shared-queue"  // no two consumers take messages from each other
)

// The checks of RabbitMQ.
const (
	Missing            Check = "missing"              // the named queues and exchanges exist
	DeliveryLimit      Check = "delivery-limit"       // no message is dropped after some deliveries
	MaxLength          Check = "max-length"           // no message is dropped when a queue is full
	Overflow           Check = "overflow"             // no message is refused when a queue is full
	MessageTTL         Check = "message-ttl"          // no message is dropped for its age
	Expires            Check = "expires"              // no queue is deleted for want of use
	DeadLetterExchange Check = "dead-letter-exchange" // dead letters reach a queue
	DeadLetterStrategy Check = "dead-letter-strategy" // dead letters are confirmed
	QueueType          Check = "queue-type"           // queues are work queues that RabbitMQ 4 has
	Durable            Check = "durable"              // queues and exchanges survive a restart
	AutoDelete         Check = "auto-delete"          // queues and exchanges survive their last user
	Unbound            Check = "unbound"              // what is sent to an exchange reaches a queue
	AlternateExchange  Check = "alternate-exchange"   // what reaches no queue is not confirmed
	NoConsumer         Check = "no-consumer"          // a queue with messages has a consumer
	SeveralConsumers   Check = "several-consumers"    // one consumer at a time keeps the order of keys
	FeatureFlags       Check = "feature-flags"        // an upgrade of RabbitMQ will start
	Alarms             Check = "alarms"               // nodes run, and take messages
	RightsWide         Check = "rights-wide"          // connected users cannot change the topology
	RightsNarrow       Check = "rights-narrow"        // connected users may do what they do
)

// Checks returns all checks, in the order of docs/doctor.md.
func Checks() []Check {
	return []Check{
		Reach, Clock, Connections, ReadOnly, Durability, Unlogged, Isolation, Autovacuum, DeadRows, OldTransaction, PreparedTransaction,
		ReplicationSlot, StandbyFeedback, InvalidIndex, RoleWide, RoleNarrow,
		Migrations, Sequence, Relays, ExpiredLease, Waiting, DeadLetters, Effects, Routes, Pauses, Window, IdleConsumer, SharedQueue,
		Missing, DeliveryLimit, MaxLength, Overflow, MessageTTL, Expires, DeadLetterExchange, DeadLetterStrategy, QueueType, Durable,
		AutoDelete, Unbound, AlternateExchange, NoConsumer, SeveralConsumers, FeatureFlags, Alarms, RightsWide, RightsNarrow,
	}
}
