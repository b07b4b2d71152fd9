package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// effectPrefix begins the state of a message whose effect is not done.
const effectPrefix = "effect_"

// SearchMessages implements [inbox.Searcher]. Without dispatch IDs, it looks at the applied messages
// of each consumer with the newest stamps.
func (s *Store) SearchMessages(ctx context.Context, q inbox.Query) (inbox.Results, error) {
	search := messageSearch{s: s, q: &q, given: len(q.IDs) > 0 || q.To != uuid.Nil}
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	if q.Scan <= 0 {
		q.Scan = defaultScan
	}
	if err := s.c.d.Read(ctx, search.run); err != nil {
		return inbox.Results{}, fmt.Errorf("search messages: %w", &OwnError{err})
	}
	return search.results, nil
}

// messageSearch is one search.
type messageSearch struct {
	s     *Store
	q     *inbox.Query
	given bool // dispatch IDs are
	tx    *sql.Tx
	now   int64

	results inbox.Results
}

// selects tells whether q selects a state.
func (m *messageSearch) selects(state inbox.State) bool {
	return len(m.q.States) == 0 || slices.Contains(m.q.States, state)
}

func (m *messageSearch) run(ctx context.Context, tx *sql.Tx) (err error) {
	m.tx, m.results = tx, inbox.Results{}
	if m.now, err = m.s.c.Now(ctx, tx); err != nil {
		return err
	}
	w := &where{}
	w.add("1 = 1")
	w.text("name", m.q.Consumer)
	consumers := make(map[int]string)
	err = m.s.c.Each(ctx, tx, func(rows *sql.Rows) error {
		var id int
		var name string
		err := rows.Scan(&id, &name)
		consumers[id] = name
		return err
	}, `SELECT id, name FROM {inbox_consumers} WHERE `+w.String(), w.args...)
	if err == nil {
		err = m.parked(ctx)
	}
	parked := len(m.results.Messages)
	for id, name := range consumers {
		if err == nil {
			err = m.effects(ctx, id)
		}
		if err == nil {
			err = m.applied(ctx, id, name, m.q.Scan/len(consumers))
		}
	}
	slices.SortStableFunc(m.results.Messages[parked:], func(a, b inbox.Found) int { return b.Since.Compare(a.Since) })
	if len(m.results.Messages) > m.q.Limit {
		m.results.Messages, m.results.More = m.results.Messages[:m.q.Limit], true
	}
	return err
}

// ids adds the conditions on dispatch IDs.
func (m *messageSearch) ids(w *where, column string) {
	w.ids(column, m.q.IDs)
	if m.q.To != uuid.Nil {
		w.add(column+" >= ? AND "+column+" <= ?", m.q.From[:], m.q.To[:])
	}
}

// parked adds parked messages.
func (m *messageSearch) parked(ctx context.Context) error {
	w := &where{}
	w.add("1 = 1")
	w.text("n.name", m.q.Consumer)
	w.text("p.topic", m.q.Topic)
	w.text("p.{message_key}", m.q.Key)
	if named := m.q.Named; named != "" {
		w.named("p", named)
		if !m.given {
			w.add(`({first p} AND p.{message_key} = ?
				OR p.seq >= (SELECT MIN(n.seq) FROM (SELECT seq FROM {inbox_parked} ORDER BY seq DESC LIMIT ?) n))`, Text(named), m.q.Scan)
		}
	}
	w.parked(names(m.q.States), m.q.Error, m.q.Since, m.q.Until)
	m.ids(w, "p.dispatch_id")
	columns := parkedColumns
	if !m.q.Content {
		columns = strings.Replace(columns, "p.metadata, p.payload", "NULL, NULL", 1)
	}
	return m.s.c.Each(ctx, m.tx, func(rows *sql.Rows) error {
		var waits sql.RawBytes
		p, err := scanParked(rows, &waits)
		if err != nil {
			return err
		}
		f := inbox.Found{
			Message: p.Message, Consumer: p.Consumer, State: p.State, Seq: p.Seq, WaitsFor: uuid.UUID(Digest(waits)), Attempts: p.Attempts,
			Since: p.ParkedAt, NextAttemptAt: p.NextAttemptAt, LastError: p.LastError, Reason: p.Reason,
		}
		if !m.q.Content {
			f.Metadata, f.Payload = nil, nil
		}
		f.Why = m.whyParked(&f)
		m.results.Messages = append(m.results.Messages, f)
		return nil
	}, `SELECT `+columns+`, CASE WHEN {first p} THEN (
			SELECT h.dispatch_id FROM {inbox_parked} h {by live}
			WHERE h.consumer = p.consumer AND {first h} AND h.{message_key} = p.{message_key} AND h.seq < p.seq ORDER BY h.seq LIMIT 1) END
		FROM {inbox_parked} p {then_join} {inbox_consumers} n ON n.id = p.consumer
		WHERE `+w.String()+` ORDER BY p.seq DESC LIMIT ?`, w.and(m.q.Limit+1)...)
}

// whyParked returns the reason that the view inbox_status shows, and names the message that f waits
// for.
func (m *messageSearch) whyParked(f *inbox.Found) string {
	switch {
	case f.State == inbox.Discarded:
		return "discarded: " + f.Reason
	case f.State == inbox.Dead:
		return "its attempts are used up, or none would help"
	case f.State == inbox.TooOldState:
		return "the consumer has forgotten the time that it is from"
	case f.State == inbox.AlteredState:
		return "its dispatch ID was claimed with other content"
	case f.WaitsFor != uuid.Nil:
		return "waits for message " + f.WaitsFor.String() + " of its key"
	}
	return m.whyDue(f)
}

func (m *messageSearch) whyDue(f *inbox.Found) string {
	if !f.NextAttemptAt.IsZero() && f.NextAttemptAt.UnixMicro() > m.now {
		return "waits for its next attempt"
	}
	return "waits to be taken up by a process of the consumer"
}

// applied adds applied messages of a consumer without an unfinished effect.
func (m *messageSearch) applied(ctx context.Context, consumer int, name string, look int) error {
	q := m.q
	if !m.selects(inbox.AppliedState) || q.Topic+q.Key+q.Named+q.Error != "" {
		return nil
	}
	part := &where{}
	part.add("consumer = ? AND applied_at IS NOT NULL", consumer)
	m.ids(part, "dispatch_id")
	order := "ORDER BY stamp DESC"
	switch {
	case len(q.IDs) > 0:
		order, look = "", math.MaxInt64
	case m.given:
		order = ""
	case q.Since.IsZero() && q.Until.IsZero(): // every message that is looked at fits
		look = min(q.Scan, q.Limit+1)
	}
	look = max(1, look)
	text := `(SELECT * FROM {inbox} WHERE ` + part.String() + ` ` + order + ` LIMIT ?) i`
	var seen int
	if err := m.s.c.One(ctx, m.tx, []any{&seen}, `SELECT COUNT(*) FROM `+text, part.and(look)...); err != nil {
		return err
	}
	m.results.More = m.results.More || seen == look
	w := &where{args: part.and(look)}
	w.add(`NOT EXISTS (SELECT 1 FROM {inbox_effects} x WHERE x.consumer = i.consumer AND x.dispatch_id = i.dispatch_id AND x.state <> 'done')`)
	w.during("i.applied_at", q.Since, q.Until)
	return m.s.c.Each(ctx, m.tx, func(rows *sql.Rows) error {
		f := inbox.Found{Consumer: name, State: inbox.AppliedState, Why: "applied"}
		var id, digest sql.RawBytes
		var stamp, at int64
		err := rows.Scan(&id, &digest, &stamp, &at, &f.Attempts)
		f.ID, f.Digest, f.Stamp, f.Since = uuid.UUID(Digest(id)), Digest(digest), Instant(stamp), Instant(at)
		m.results.Messages = append(m.results.Messages, f)
		return err
	}, `SELECT i.dispatch_id, i.digest, i.stamp, i.applied_at, (
			SELECT COUNT(*) FROM {inbox_history} a WHERE a.dispatch_id = i.dispatch_id AND a.consumer = i.consumer AND a.outcome IN ('failed', 'applied'))
		FROM `+text+` WHERE `+w.String()+` ORDER BY i.applied_at DESC LIMIT ?`, w.and(q.Limit+1)...)
}

// effects adds messages of a consumer with an unfinished effect. Without dispatch IDs, discarded
// effects are found among the newest of all.
func (m *messageSearch) effects(ctx context.Context, consumer int) error {
	q := m.q
	if len(q.States) > 0 && !slices.ContainsFunc(q.States, func(state inbox.State) bool { return strings.HasPrefix(string(state), effectPrefix) }) {
		return nil
	}
	w := &where{}
	w.add("e.consumer = ?", consumer)
	w.text("e.topic", q.Topic)
	w.text("e.{message_key}", q.Key)
	if q.Named != "" {
		w.named("e", q.Named)
	}
	w.during("e.prepared_at", q.Since, q.Until)
	if q.Error != "" {
		w.add("INSTR(e.last_error, ?) > 0", Text(q.Error))
	}
	if len(q.States) > 0 {
		w.add(`CASE WHEN e.lease_until < ? AND e.result IS NULL THEN 'effect_uncertain' WHEN e.state = 'pending' THEN 'effect_pending'
			WHEN e.state = 'doing' THEN 'effect_doing' WHEN e.state = 'answered' THEN 'effect_answered' WHEN e.state = 'uncertain' THEN 'effect_uncertain'
			WHEN e.state = 'dead' THEN 'effect_dead' ELSE 'effect_discarded' END IN ?`, m.now, names(q.States))
	}
	m.ids(w, "e.dispatch_id")
	if m.given {
		return m.addEffects(ctx, w.with("e.state <> 'done'"))
	}
	open := []string{"pending", "doing", "answered", "uncertain", "dead"}
	if err := m.addEffects(ctx, w.with("e.state IN ? AND e.state NOT IN ('done', 'discarded')", open)); err != nil {
		return err
	}
	return m.addEffects(ctx, w.with("e.state = 'discarded' AND e.id > (SELECT MAX(id) FROM {inbox_effects}) - ?", q.Scan))
}

func (m *messageSearch) addEffects(ctx context.Context, w *where) error {
	runs, err := m.s.effects(ctx, m.tx, m.now, w.String()+` ORDER BY e.id DESC LIMIT ?`, w.and(m.q.Limit+1)...)
	for i := range runs {
		e := &runs[i].Effect
		f := inbox.Found{
			Message: inbox.Message{ID: e.ID, Topic: e.Topic, Key: e.OrderKey}, Consumer: e.Consumer, State: inbox.State(effectPrefix + e.State),
			Attempts: e.Attempts, Since: e.PreparedAt, NextAttemptAt: e.DueAt, LastError: e.LastError, Reason: e.Reason,
		}
		if err == nil {
			err = m.complete(ctx, &f, e)
		}
		f.Why = m.whyEffect(&f, e)
		m.results.Messages = append(m.results.Messages, f)
	}
	return err
}

// complete adds what the claim of the message says, and what the effect waits for.
func (m *messageSearch) complete(ctx context.Context, f *inbox.Found, e *inbox.Effect) error {
	return m.s.c.Each(ctx, m.tx, func(rows *sql.Rows) error {
		var digest, waits sql.RawBytes
		var stamp sql.NullInt64
		err := rows.Scan(&digest, &stamp, &waits)
		f.Digest, f.Stamp, f.WaitsFor = Digest(digest), Optional(stamp), uuid.UUID(Digest(waits))
		return err
	}, `SELECT i.digest, i.stamp, CASE WHEN {waits e} AND e.state IN ('pending', 'answered') THEN (
			SELECT b.dispatch_id FROM {inbox_effects} b
			WHERE b.consumer = e.consumer AND {waits b} AND b.{message_key} = e.{message_key} AND b.id < e.id ORDER BY b.id LIMIT 1) END
		FROM {inbox_effects} e LEFT JOIN {inbox} i ON i.consumer = e.consumer AND i.dispatch_id = e.dispatch_id WHERE e.id = ?`, e.Seq)
}

// whyEffect is whyParked for a message with an unfinished effect.
func (m *messageSearch) whyEffect(f *inbox.Found, e *inbox.Effect) string {
	expired := !e.LeaseUntil.IsZero() && e.LeaseUntil.UnixMicro() < m.now
	switch {
	case e.State == inbox.EffectDiscarded:
		return "discarded: " + f.Reason
	case e.State == inbox.EffectUncertain && expired:
		return "whoever carried it out never came back: it may have been carried out"
	case e.State == inbox.EffectUncertain:
		return "it may have been carried out, and nobody asks again: to be resolved"
	case e.State == inbox.EffectDead && e.Result != nil:
		return "it was carried out; what was to follow fails"
	case e.State == inbox.EffectDead:
		return "its attempts are used up, or none would help; it was not carried out"
	case e.State == inbox.EffectDoing && !expired:
		return "is being carried out"
	case e.State == inbox.EffectDoing:
		return "whoever carried it out never came back; what follows is to be done"
	case f.WaitsFor != uuid.Nil:
		return "waits for the effect of message " + f.WaitsFor.String() + " of its key"
	}
	return m.whyDue(f)
}

// MessageCauses implements [inbox.Searcher].
func (s *Store) MessageCauses(ctx context.Context, f inbox.Filter) ([]inbox.Cause, error) {
	f.After = 0
	w := selectsMessages(f)
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (c inbox.Cause, err error) {
		var example sql.RawBytes
		var first, last int64
		err = rows.Scan(&c.Consumer, &c.State, &c.Topic, &c.Error, &c.Count, &first, &last, &example)
		c.First, c.Last, c.Example = Instant(first), Instant(last), uuid.UUID(Digest(example))
		return c, err
	}, `SELECT g.name, g.state, g.topic, g.last_error, g.n, g.first_at, g.last_at, p.dispatch_id FROM (
			SELECT n.name, p.state, p.topic, p.last_error, COUNT(*) AS n, MIN(p.parked_at) AS first_at, MAX(p.parked_at) AS last_at, MAX(p.seq) AS seq
			FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
			WHERE `+w.String()+` GROUP BY n.name, p.state, p.topic, p.last_error ORDER BY n DESC, seq DESC LIMIT ?) g
		JOIN {inbox_parked} p ON p.seq = g.seq ORDER BY g.n DESC, g.seq DESC`, w.and(limitOf(f.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("count causes: %w", &OwnError{err})
	}
	return list, nil
}
