package doctor

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/management"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/transport/amqp"
)

// Config says what [Run] looks at. At least one outbox, inbox or Management.URL is required.
type Config struct {
	// Outboxes and Inboxes are the databases. A database that holds both is in both lists.
	Outboxes, Inboxes []Database `yaml:"-" env:"-"`
	// Management is RabbitMQ's management API. The user needs the tag monitoring; for the checks of
	// rights, administrator. Without a URL, RabbitMQ is not checked, and a finding says so.
	Management amqp.Management `yaml:"-" env:"-"`
	// Queues are the names of the queues to check. Defaults to all of the virtual host.
	Queues []string `yaml:"queues" env:"QUEUES"`
	// Exchanges are the names of the exchanges to check. Defaults to all of the virtual host but
	// those of RabbitMQ itself.
	Exchanges []string `yaml:"exchanges" env:"EXCHANGES"`

	// ClockSkew is how far clocks may differ. Inboxes report stamps that are further ahead than 5
	// minutes. Defaults to 5 seconds.
	ClockSkew time.Duration `yaml:"clock_skew" env:"CLOCK_SKEW"`
	// TransactionAge is how long a transaction may be open or prepared. Defaults to 5 minutes.
	TransactionAge time.Duration `yaml:"transaction_age" env:"TRANSACTION_AGE"`
	// EventAge is how old the oldest event that waits in an outbox may be, and how long a session may
	// wait for the locks of other sessions. Defaults to 1 minute.
	EventAge time.Duration `yaml:"event_age" env:"EVENT_AGE"`
	// MessageAge is for how long an inbox may retry a message. The messages of its key wait behind it,
	// for up to 36 minutes if no operator looks. Defaults to 5 minutes.
	MessageAge time.Duration `yaml:"message_age" env:"MESSAGE_AGE"`
	// ConsumerSilence is for how long no process of a consumer may have looked for dispatch IDs to
	// forget, which consumer.Inbox.Run does every 10 minutes. Defaults to 1 hour.
	ConsumerSilence time.Duration `yaml:"consumer_silence" env:"CONSUMER_SILENCE"`
	// DeadRows is how many rows of a table may be deleted and not removed yet. Defaults to 100,000.
	DeadRows int `yaml:"dead_rows" env:"DEAD_ROWS"`
	// SlotBytes is how much of the write-ahead log a replication slot in use may hold. Defaults to 1
	// GiB.
	SlotBytes int `yaml:"slot_bytes" env:"SLOT_BYTES"`
	// Ignore are checks whose findings are left out. Defaults to none.
	Ignore []Check `yaml:"-" env:"-"`
}

// Database is a database with an outbox or an inbox.
type Database struct {
	// Name names the database in findings. Required.
	Name string
	// Pool reaches a PostgreSQL database. Either Pool or SQLite is set.
	Pool *pgxpool.Pool
	// SQLite is a database of sqlite.OpenReadOnly or sqlite.Open.
	SQLite *sql.DB
	// Schema and Prefix are as in the configuration of the store. Schema is for PostgreSQL only.
	Schema, Prefix string
	// Connections is how many connections all processes of the service open together at most: their
	// number times the MaxConns of their pools. The connections of a Pool that is given twice count
	// once. Defaults to 0: not known.
	Connections int
}

// withDefaults returns c with its zero fields filled in, or an error that joins all mistakes in c.
func (c Config) withDefaults() (Config, error) {
	errs := []error{
		fill("ClockSkew", &c.ClockSkew, 5*time.Second), fill("TransactionAge", &c.TransactionAge, 5*time.Minute),
		fill("EventAge", &c.EventAge, time.Minute), fill("MessageAge", &c.MessageAge, 5*time.Minute),
		fill("ConsumerSilence", &c.ConsumerSilence, time.Hour),
		fill("DeadRows", &c.DeadRows, 100_000), fill("SlotBytes", &c.SlotBytes, 1<<30),
	}
	if len(c.Outboxes) == 0 && len(c.Inboxes) == 0 && c.Management.URL == "" {
		errs = append(errs, errors.New("nothing to check: one of Outboxes, Inboxes and Management.URL is required"))
	}
	for side, list := range map[string][]Database{"Outboxes": c.Outboxes, "Inboxes": c.Inboxes} {
		for i := range list {
			if err := list[i].validate(); err != nil {
				errs = append(errs, fmt.Errorf("%s[%d]: %w", side, i, err))
			}
		}
	}
	if c.Management.URL != "" {
		if _, err := management.New(c.Management.URL, c.Management.VHost, c.Management.Client); err != nil {
			errs = append(errs, fmt.Errorf("Management: %w", err))
		}
	}
	for _, check := range c.Ignore {
		if !slices.Contains(Checks(), check) {
			errs = append(errs, fmt.Errorf("Ignore: there is no check %q", check))
		}
	}
	return c, errors.Join(errs...)
}

func (d *Database) validate() error {
	var errs []error
	if d.Name == "" {
		errs = append(errs, errors.New("Name: is required"))
	}
	if (d.Pool == nil) == (d.SQLite == nil) {
		errs = append(errs, errors.New("either Pool or SQLite is required"))
	}
	if d.SQLite != nil && d.Schema != "" {
		errs = append(errs, errors.New("Schema: SQLite has none"))
	}
	if d.Connections < 0 {
		errs = append(errs, fmt.Errorf("Connections: %d is negative", d.Connections))
	}
	_, err := d.names()
	return errors.Join(append(errs, err)...)
}

func (d *Database) names() (migrations.Names, error) {
	if d.SQLite != nil {
		return migrations.SQLiteNames(d.Prefix)
	}
	return migrations.PostgresNames(d.Schema, d.Prefix)
}

func fill[T time.Duration | int](name string, value *T, def T) error {
	if *value < 0 {
		return fmt.Errorf("%s: %v is negative", name, *value)
	}
	if *value == 0 {
		*value = def
	}
	return nil
}
