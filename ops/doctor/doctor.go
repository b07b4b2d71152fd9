package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/management"
)

// Severity says what a finding threatens.
type Severity string

// The severities, the worst first.
const (
	// Loses: events, messages, their effects or their order may be lost.
	Loses Severity = "loses"
	// Stalls: events or messages wait, or will wait, for longer than they should.
	Stalls Severity = "stalls"
	// Advice: nothing is lost or stalled, but a guard is missing.
	Advice Severity = "advice"
	// NotChecked: the check could not be done.
	NotChecked Severity = "not checked"
)

var severities = []Severity{Loses, Stalls, Advice, NotChecked}

// Finding is the result of one check. Its texts are lines without control characters.
type Finding struct {
	Check    Check    `json:"check"`
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // such as: orders, queue "order.placed"
	Problem  string   `json:"problem"`
	Remedy   string   `json:"remedy"` // a command or a statement to type, where there is one
}

// String returns f in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s: %s; %s", f.Severity, f.Subject, f.Problem, f.Remedy)
}

// later are the checks whose findings come after others of the same severity, in this order: another
// finding may explain why an event waits; a server without vacuum only gets slower.
var later = []Check{Waiting, DeadRows, Autovacuum}

// sort puts the worst findings first, and within a severity causes before what waits because of them.
func sort(found []Finding) {
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)),
			cmp.Compare(slices.Index(later, a.Check), slices.Index(later, b.Check)),
		)
	})
}

// Run does all checks, one after another, and returns their findings, the worst first. Run only
// reads, and uses one connection of each pool at a time. Run returns an error if a field of cfg is
// wrong, or the cause of the end of ctx. A server that does not answer is a finding: bound ctx, and
// the connect timeouts of the pools.
func Run(ctx context.Context, cfg Config) ([]Finding, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("doctor config: %w", err)
	}
	r := &run{cfg: cfg}
	r.databases(ctx)
	if cfg.Management.URL == "" {
		r.add(Reach, NotChecked, "RabbitMQ", "no management API is given", "rabbitmq-plugins enable rabbitmq_management, and give its URL: boxpair doctor --management URL")
	} else {
		r.rabbitMQ(ctx)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	sort(r.found)
	return r.found, nil
}

// run is one call of [Run].
type run struct {
	cfg         Config
	found       []Finding
	unreachable map[*pgxpool.Pool]error // why a database cannot be reached
	shared      bool                    // two consumers take messages from each other
}

// add adds a finding, once.
func (r *run) add(check Check, severity Severity, subject, problem, remedy string) {
	f := Finding{Check: check, Severity: severity, Subject: plain(subject), Problem: plain(problem), Remedy: plain(remedy)}
	if !slices.Contains(r.cfg.Ignore, check) && !slices.Contains(r.found, f) {
		r.found = append(r.found, f)
	}
}

// failed adds the finding that a check could not be done.
func (r *run) failed(check Check, subject string, err error) {
	problem, remedy := err.Error(), "try again when the server answers"
	switch pgErr, is := errors.AsType[*pgconn.PgError](err); {
	case is && pgErr.Code == "42501":
		remedy = "grant the role what the error names, or the section \"role: monitor\" of migrations/grants/postgres.sql"
	case is && slices.Contains([]string{"42P01", "42703", "3F000"}, pgErr.Code):
		remedy = "apply the missing migrations: boxpair migrate up"
	case is:
		problem = fmt.Sprintf("%s (SQLSTATE %s)", pgErr.Message, pgErr.Code)
	case errors.Is(err, management.ErrDenied):
		remedy = "give the user the tag monitoring: rabbitmqctl set_user_tags USER monitoring"
	}
	if admin, is := errors.AsType[*administratorError](err); is {
		remedy = "look yourself: " + admin.command
	}
	r.add(check, NotChecked, subject, problem, remedy)
}

// plain returns text in one line, without control characters and without the passwords of URLs.
func plain(text string) string {
	words := strings.Split(strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == unicode.ReplacementChar {
			return ' '
		}
		return c
	}, text), " ")
	for i, word := range words {
		if scheme, rest, is := strings.Cut(word, "://"); is {
			if at := strings.LastIndex(rest, "@"); at >= 0 {
				words[i] = scheme + "://" + rest[at+1:]
			}
		}
	}
	return strings.Join(words, " ")
}

// literal returns text as a literal of SQL.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// shell returns text as a word of a shell.
func shell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
