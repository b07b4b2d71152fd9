package doctor

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"
)

// retried is a message that an inbox retries.
type retried struct {
	id               string // begins with digits, which are enough for boxpair why
	topic, lastError string
	attempts, behind int64 // behind are later messages of its key
	age              time.Duration
}

const (
	// mostRetried is how many messages of a consumer are findings of their own.
	mostRetried = 3
	// lookedAt is how many of the oldest messages these are chosen from: an outage parks thousands.
	lookedAt = 100
	// shownError is how many characters of an error are shown.
	shownError = 80
)

// retried looks for messages that a consumer retries for long. First comes the one with most messages
// behind it.
func (r *run) retried(ctx context.Context, t *tables, c *consumer, subject string, oldest time.Duration) {
	id, age, before := "p.dispatch_id::text", "(extract(epoch FROM clock_timestamp() - p.parked_at) * 1000000)::bigint", "clock_timestamp() - $2::bigint * interval '1 microsecond'"
	if t.SQLite != nil {
		id, age, before = "lower(hex(p.dispatch_id))", "{now} - p.parked_at", "{now} - $2"
	}
	const long = ` FROM {inbox_parked} p WHERE p.consumer = $1 AND p.state = 'retrying' AND p.parked_at < `
	limit := r.cfg.MessageAge.Microseconds()
	list, err := query(ctx, t, func(row scanner, m *retried) error {
		var age int64
		err := row.Scan(&m.id, &m.topic, &m.lastError, &m.attempts, &age, &m.behind)
		m.age = time.Duration(age) * time.Microsecond
		return err
	}, `SELECT id, topic, last_error, attempts, age, CASE WHEN ordered THEN (
				SELECT count(*) FROM {inbox_parked} f WHERE f.consumer = $1 AND f.key = o.key AND f.ordered AND f.state = 'following'
			) ELSE 0 END AS behind
		FROM (
			SELECT `+id+` AS id, p.topic, p.key, p.ordered, p.attempts, coalesce(p.last_error, '') AS last_error, `+age+` AS age`+
		long+before+` ORDER BY p.parked_at LIMIT $3
		) o ORDER BY behind DESC, age DESC LIMIT $4`, c.id, limit, lookedAt, mostRetried)
	var all []int
	if err == nil {
		all, err = query(ctx, t, func(row scanner, n *int) error { return row.Scan(n) }, `SELECT count(*)`+long+before, c.id, limit)
	}
	if err != nil {
		r.failed(Waiting, subject, err)
		return
	}
	status := "boxpair status --inbox URL --consumer " + shell(c.name)
	if len(list) == 0 {
		r.add(Waiting, Stalls, subject, fmt.Sprintf("the oldest message waits behind a retried one for %v", oldest.Round(time.Second)), status)
	}
	for i := range list {
		r.add(Waiting, Stalls, subject, list[i].String(), "boxpair why "+list[i].id+" --inbox URL")
	}
	if more := all[0] - len(list); len(list) > 0 && more > 0 {
		r.add(Waiting, Stalls, subject, fmt.Sprintf("%d more messages are retried for longer than %v", more, r.cfg.MessageAge), status)
	}
}

// String says for how long and how often the message is tried, and what that holds up.
func (m *retried) String() string {
	const digits = 8
	text := fmt.Sprintf("the message %s of topic %s ", m.id[:digits], m.topic)
	age := m.age.Round(time.Second)
	switch m.attempts {
	case 0:
		text += fmt.Sprintf("waits for %v without an attempt", age)
	case 1:
		text += fmt.Sprintf("was tried once in %v", age)
	default:
		text += fmt.Sprintf("was tried %d times in %v", m.attempts, age)
	}
	switch m.behind {
	case 0:
	case 1:
		text += ", and 1 message of its key waits behind it"
	default:
		text += fmt.Sprintf(", and %d messages of its key wait behind it", m.behind)
	}
	if m.lastError != "" {
		text += "; its last error: " + excerpt(m.lastError, shownError)
	}
	return text
}

// excerpt returns the first characters of text.
func excerpt(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}
