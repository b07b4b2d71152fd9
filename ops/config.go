package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// Config configures a [Handler].
type Config struct {
	// Title is the name at the top of every page. Defaults to "boxpair".
	Title string `yaml:"title" env:"TITLE"`
	// Path is where the handler is mounted, such as "/ops". Requests come with the path. Defaults to
	// the root.
	Path string `yaml:"path" env:"PATH"`

	// Outboxes and Inboxes are shown by the dashboard. At least one outbox or inbox is required.
	Outboxes []Outbox `yaml:"-" env:"-"`
	Inboxes  []Inbox  `yaml:"-" env:"-"`

	// Payloads shows payloads and headers on the pages of events and messages, and the intents and
	// results of effects, to every reader. Defaults to false.
	Payloads bool `yaml:"payloads" env:"PAYLOADS"`

	// Token is the secret of operators: a bearer token, or the password of HTTP basic authentication,
	// whose user name is the user. At least 16 bytes. Requests without Token are refused. Use TLS
	// unless the connection stays on one machine. Not together with Authorize. Defaults to none.
	Token string `yaml:"token" env:"TOKEN"`
	// Authorize returns the role and the name of the user of a request. On an error the request is
	// refused; the error is logged, and not shown. Authorize is called for every request, by many
	// goroutines at once. Not together with Token. Defaults to none.
	Authorize func(r *http.Request) (role Role, user string, err error) `yaml:"-" env:"-"`
	// Loopback is the role of requests from the same machine if neither Token nor Authorize is set.
	// Every user of the machine, and every proxy on the machine, can send these requests. Defaults to
	// reader.
	Loopback Role `yaml:"loopback" env:"LOOPBACK"`

	// Timeout bounds the calls that one request makes. Defaults to 10 s.
	Timeout time.Duration `yaml:"timeout" env:"TIMEOUT"`
	// Health judges the states. Defaults to the zero [health.Config].
	Health *health.Check `yaml:"-" env:"-"`
	// Logger receives every change with its user and reason, refused requests, and errors. Defaults
	// to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

// Outbox is an outbox that the dashboard shows.
type Outbox struct {
	// Name is shown, and stands in addresses. Required, and unique among outboxes.
	Name string
	// Operator is usually a *producer.Outbox. Required.
	Operator OutboxOperator
	// Parts are further objects of the outbox, such as its store. Operator, or else one of Parts, may
	// implement [outbox.Searcher], which finds events in any state, [Fleet], which lists the relays,
	// and [Editor], which edits events.
	Parts []any
}

// Inbox is an inbox that the dashboard shows.
type Inbox struct {
	// Name is shown, and stands in addresses. Required, and unique among inboxes.
	Name string
	// Operator is usually a *consumer.Inbox. Required.
	Operator InboxOperator
	// Effects is usually an *effects.Ledger. Without Effects the inbox has no effects.
	Effects Effects
	// Parts are further objects of the inbox, such as its store and its auditor. Operator, or else one of
	// Parts, may implement [inbox.Searcher], which finds messages in any state, [MessageEditor], which
	// edits messages, [Handlers], which lists the handlers of all processes, and [Registry] and [Counts],
	// which know consumers without a handler in this process.
	Parts []any
}

// Pauser begins and ends pauses.
type Pauser interface {
	// Pause begins a pause, or replaces the pause of its kind and name.
	Pause(ctx context.Context, p control.Pause) error
	// Resume ends a pause, and tells whether the pause was in force.
	Resume(ctx context.Context, kind control.Kind, name string) (bool, error)
	// Pauses reads the pauses in force.
	Pauses(ctx context.Context) ([]control.Pause, error)
}

// OutboxOperator is the part of a producer.Outbox that the dashboard needs. Many goroutines may call
// its methods at once.
type OutboxOperator interface {
	Pauser
	// Stats reads the state of the outbox.
	Stats(ctx context.Context) (outbox.Stats, error)
	// ListRoutes reads the topics to which relays cannot send.
	ListRoutes(ctx context.Context) ([]outbox.StalledRoute, error)
	// ListParked reads parked events.
	ListParked(ctx context.Context, f outbox.Filter) ([]outbox.Parked, error)
	// ListDeferred reads deferred events.
	ListDeferred(ctx context.Context, f outbox.DeferredFilter) ([]outbox.Deferred, error)
	// Attempts reads the failed attempts and the changes by operators of an event.
	Attempts(ctx context.Context, id uuid.UUID, limit int) ([]outbox.Attempt, error)
	// Deliveries reads when an event was delivered.
	Deliveries(ctx context.Context, id uuid.UUID) ([]outbox.Delivery, error)
	// Redrive sends dead events again.
	Redrive(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error)
	// Discard gives parked events up.
	Discard(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error)
	// Cancel gives deferred events up.
	Cancel(ctx context.Context, reason string, ids ...uuid.UUID) ([]uuid.UUID, error)
	// Reschedule moves deferred events to another time.
	Reschedule(ctx context.Context, at time.Time, ids ...uuid.UUID) ([]uuid.UUID, error)
}

// InboxOperator is the part of a consumer.Inbox that the dashboard needs. Many goroutines may call its
// methods at once.
type InboxOperator interface {
	Pauser
	// Stats reads the state of the consumers of this process, by name.
	Stats(ctx context.Context) (map[string]inbox.Stats, error)
	// ListParked reads parked messages.
	ListParked(ctx context.Context, f inbox.Filter) ([]inbox.Parked, error)
	// Attempts reads the history of a message.
	Attempts(ctx context.Context, id uuid.UUID, limit int) ([]inbox.Attempt, error)
	// Redrive makes messages due again.
	Redrive(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error)
	// Discard gives parked messages up.
	Discard(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error)
}

// Effects is the part of an effects.Ledger that the dashboard needs. Many goroutines may call its
// methods at once.
type Effects interface {
	// List reads effects.
	List(ctx context.Context, f inbox.EffectFilter) ([]inbox.Effect, error)
	// Redrive makes dead and uncertain effects pending again.
	Redrive(ctx context.Context, f inbox.EffectFilter, reason string) ([]uuid.UUID, error)
	// Discard gives effects up.
	Discard(ctx context.Context, f inbox.EffectFilter, reason string) ([]uuid.UUID, error)
	// Resolve records the result of an effect that was carried out.
	Resolve(ctx context.Context, key uuid.UUID, result any, reason string) (bool, error)
}

func (c Config) withDefaults() (Config, error) {
	c.Path = strings.TrimSuffix(c.Path, "/")
	errs := []error{c.check()}
	if c.Title == "" {
		c.Title = "boxpair"
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Health == nil {
		check, err := health.New(health.Config{})
		c.Health, errs = check, append(errs, err)
	}
	return c, errors.Join(errs...)
}

// check returns an error that joins the mistakes in c.
func (c *Config) check() error {
	var errs []error
	for _, setting := range []struct{ name, value string }{{"Title", c.Title}, {"Path", c.Path}, {"Token", c.Token}} {
		if !utf8.ValidString(setting.value) || strings.ContainsRune(setting.value, 0) {
			errs = append(errs, fmt.Errorf("%s: is not valid UTF-8 without NUL", setting.name))
		}
	}
	if c.Path != "" && (c.Path[0] != '/' || strings.HasPrefix(c.Path, "//") || strings.ContainsAny(c.Path, "{}?#% \\")) {
		errs = append(errs, fmt.Errorf("Path: %q is not the beginning of a path, such as /ops", c.Path))
	}
	if c.Token != "" && len(c.Token) < minToken {
		errs = append(errs, fmt.Errorf("Token: has %d bytes, at least %d", len(c.Token), minToken))
	}
	if c.Token != "" && c.Authorize != nil {
		errs = append(errs, errors.New("Token: cannot be set together with Authorize"))
	}
	if c.Loopback > Operator {
		errs = append(errs, fmt.Errorf("Loopback: %d is no role", c.Loopback))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("Timeout: %v is negative", c.Timeout))
	}
	return errors.Join(append(errs, c.checkSources())...)
}

// checkSources checks the names and the operators of outboxes and inboxes.
func (c *Config) checkSources() error {
	var errs []error
	if len(c.Outboxes)+len(c.Inboxes) == 0 {
		errs = append(errs, errors.New("Outboxes: at least one outbox, or one of Inboxes, is required"))
	}
	seen := make(map[string]bool)
	for i, o := range c.Outboxes {
		errs = append(errs, checkSource(seen, fmt.Sprintf("Outboxes[%d]", i), "outbox", o.Name, o.Operator == nil))
	}
	for i, in := range c.Inboxes {
		errs = append(errs, checkSource(seen, fmt.Sprintf("Inboxes[%d]", i), "inbox", in.Name, in.Operator == nil))
	}
	return errors.Join(errs...)
}

const (
	minToken       = 16
	maxName        = 255
	defaultTimeout = 10 * time.Second
)

// checkSource checks the name and the operator of an outbox or an inbox.
func checkSource(seen map[string]bool, field, kind, name string, missing bool) error {
	var errs []error
	switch {
	case name == "" || len(name) > maxName:
		errs = append(errs, fmt.Errorf("%s.Name: want 1 to %d bytes", field, maxName))
	case name == "." || name == ".." || strings.Contains(name, "/"):
		errs = append(errs, fmt.Errorf("%s.Name: %q cannot stand in an address", field, name))
	case seen[kind+name]:
		errs = append(errs, fmt.Errorf("%s.Name: %q is the name of an earlier one", field, name))
	}
	seen[kind+name] = true
	if missing {
		errs = append(errs, fmt.Errorf("%s.Operator: is required", field))
	}
	return errors.Join(errs...)
}

// part returns the first of an operator and its parts that implements T.
func part[T any](operator any, parts []any) (T, bool) {
	if p, ok := operator.(T); ok {
		return p, true
	}
	for _, candidate := range parts {
		if p, ok := candidate.(T); ok {
			return p, true
		}
	}
	var none T
	return none, false
}
