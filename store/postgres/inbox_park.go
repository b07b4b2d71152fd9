package postgres

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/store/inbox"
)

var (
	insertMessage = statement(`
INSERT INTO {{inbox_parked}} (consumer, dispatch_id, digest, stamp, topic, key, ordered, claimed, state,
    metadata, payload, attempts, next_attempt_at, last_error)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9::text, $10::jsonb, $11, $12,
    CASE WHEN $9::text = 'retrying' THEN clock_timestamp() + $13::bigint * interval '1 microsecond' END, $14)
ON CONFLICT (consumer, dispatch_id, digest) DO NOTHING`)

	// insertFresh is insertMessage for a message that was never handled, without the lock of its
	// key. The message follows if a live message of the key stays in front until the message is
	// committed: the lock of the row holds back the transaction that would remove the row, and whose
	// next statement promotes the followers that it sees. A locked row is passed over. The first row
	// of the key is left alone: its handler would be put off.
	insertFresh = statement(`
WITH ahead AS MATERIALIZED (
    SELECT p.id FROM {{inbox_parked}} p
    WHERE $7 AND $13 AND p.consumer = $1 AND p.key = $6 AND p.ordered AND p.state IN ('retrying', 'following')
        AND p.id > (
            SELECT h.id FROM {{inbox_parked}} h
            WHERE h.consumer = $1 AND h.key = $6 AND h.ordered AND h.state IN ('retrying', 'following')
            ORDER BY h.id LIMIT 1)
    ORDER BY p.id DESC LIMIT 1 FOR SHARE SKIP LOCKED
), place AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM ahead) AS follows
)
INSERT INTO {{inbox_parked}} (consumer, dispatch_id, digest, stamp, topic, key, ordered, claimed, state,
    metadata, payload, attempts, next_attempt_at, last_error)
SELECT $1::smallint, $2::uuid, $3::bytea, $4::timestamptz, $5::text, $6::text, $7::boolean, $8::boolean,
    CASE WHEN follows THEN 'following' ELSE $9::text END, $10::jsonb, $11::bytea, $12::integer,
    CASE WHEN NOT follows THEN clock_timestamp() END, $14::text
FROM place
ON CONFLICT (consumer, dispatch_id, digest) DO NOTHING`)

	// A message that was set aside without a claim, and is claimed after all, gets a new place
	// among the parked messages.
	deleteUnclaimed = statement(`
DELETE FROM {{inbox_parked}} WHERE consumer = $1 AND dispatch_id = $2 AND digest = $3 AND NOT claimed`)

	deleteAttempts = statement(`DELETE FROM {{inbox_attempts}} WHERE consumer = $1 AND dispatch_id = $2`)
)

// ParkMessage implements [inbox.ParkedStore]. Until ctx ends, ParkMessage waits for the end of a
// transaction that has claimed the message.
func (s *Store) ParkMessage(ctx context.Context, p inbox.Parking) (inbox.Verdict, error) {
	m := p.Message
	if m == nil {
		return inbox.None, errors.New("park: no message given")
	}
	p.Ordered = p.Ordered && m.Key != ""
	switch p.State {
	case inbox.TooOldState, inbox.AlteredState:
		return s.setAside(ctx, &p)
	case inbox.Retrying, inbox.Dead:
	default:
		return inbox.None, fmt.Errorf("park: a message cannot be parked as %q", p.State)
	}
	verdict, err := s.parkClaimed(ctx, &p)
	switch {
	case err != nil:
		return inbox.None, err
	case p.Fresh:
		return verdict, nil
	}
	// Meanwhile a copy may have been applied and forgotten, or different content may have been
	// claimed. The message is still kept.
	switch verdict {
	case inbox.TooOld:
		p.State = inbox.TooOldState
		return s.setAside(ctx, &p)
	case inbox.Altered:
		p.State = inbox.AlteredState
		return s.setAside(ctx, &p)
	}
	return verdict, nil
}

// parkClaimed claims and parks a message in one transaction. A live message with a key takes the
// key's lock, so that no newcomer passes the message unseen. A fresh message needs no lock: every
// newcomer of its key is stored behind it.
func (s *Store) parkClaimed(ctx context.Context, p *inbox.Parking) (inbox.Verdict, error) {
	m := p.Message
	c := inbox.Claim{Consumer: p.Consumer, ID: m.ID, Digest: m.Digest, Stamp: m.Stamp, IdleTimeout: ownIdle}
	key := ""
	if p.Ordered && p.State == inbox.Retrying && !p.Fresh {
		key = m.Key
	}
	t, err := s.open(ctx, s.optionsOf(&c, key))
	if err != nil {
		return inbox.None, err
	}
	defer t.end(ctx)
	got, err := t.makeClaim(ctx, &c, false)
	switch {
	case err != nil:
		return inbox.None, err
	case !got.mine:
		return t.compare(ctx, c.Consumer, c.ID, c.Digest)
	case got.tooOld:
		return inbox.TooOld, nil
	}
	b := t.batch()
	if err := s.queueParked(b, p); err != nil {
		return inbox.None, err
	}
	if err := t.sendOwn(ctx, "park", b); err != nil {
		return inbox.None, err
	}
	if err := t.commitClaim(ctx); err != nil {
		return inbox.None, err
	}
	return inbox.Applied, nil
}

// queueParked queues the statements that park a newly claimed message.
func (s *Store) queueParked(b *pgx.Batch, p *inbox.Parking) error {
	args, err := parkingArgs(p, true)
	if err != nil {
		return err
	}
	id, insert := idValue(p.Message.ID), insertMessage
	if p.Fresh {
		// Above READ COMMITTED, a handler's transaction may not see a follower that was added since
		// the transaction began, and would not promote the follower.
		args[12] = p.Isolation == inbox.ReadCommitted
		insert = insertFresh
	}
	b.Queue(s.sql[deleteUnclaimed], p.Consumer, id, p.Message.Digest[:])
	b.Queue(s.sql[insert], args...).Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != 1 {
			return errors.New("the message is parked already, but its claim was missing")
		}
		return nil
	})
	b.Queue(s.sql[deleteAttempts], p.Consumer, id)
	if p.State == inbox.Dead && p.Attempts == 0 {
		b.Queue(s.sql[noteAttempt], p.Consumer, []pgtype.UUID{id}, "dead", storable(p.LastError))
	}
	return nil
}

// setAside keeps a message without a claim.
func (s *Store) setAside(ctx context.Context, p *inbox.Parking) (inbox.Verdict, error) {
	args, err := parkingArgs(p, false)
	if err != nil {
		return inbox.None, err
	}
	tag, err := s.exec(ctx, insertMessage, args...)
	switch {
	case err != nil:
		return inbox.None, failed("set a message aside", &ownError{err})
	case tag.RowsAffected() == 0:
		return inbox.Duplicate, nil
	}
	return inbox.Applied, nil
}

func parkingArgs(p *inbox.Parking, claimed bool) ([]any, error) {
	m := p.Message
	metadata, err := encodeMetadata(m.Metadata)
	if err != nil {
		return nil, err
	}
	payload := m.Payload
	if payload == nil {
		payload = []byte{} // nil would be NULL
	}
	return []any{
		p.Consumer, idValue(m.ID), m.Digest[:], timeValue(m.Stamp), m.Topic, m.Key, p.Ordered, claimed, string(p.State),
		metadata, payload, p.Attempts, max(0, p.RetryIn.Microseconds()), storable(p.LastError),
	}, nil
}

// storable replaces the characters of s that the database cannot store.
func storable(s string) string {
	return text.Clean(s, math.MaxInt)
}

// encodeMetadata returns metadata as a JSON object of names and values. JSON in PostgreSQL holds
// neither NUL nor invalid UTF-8, but metadata may. Such pairs are a list under the empty name, in
// base64.
func encodeMetadata(metadata map[string]string) (string, error) {
	object := make(map[string]any, len(metadata))
	var rest [][2]string
	for name, value := range metadata {
		if name != "" && isText(name) && isText(value) {
			object[name] = value
			continue
		}
		rest = append(rest, [2]string{
			base64.StdEncoding.EncodeToString([]byte(name)), base64.StdEncoding.EncodeToString([]byte(value)),
		})
	}
	if rest != nil {
		object[""] = rest
	}
	text, err := json.Marshal(object)
	if err != nil {
		return "", fmt.Errorf("encode metadata: %w", err)
	}
	return string(text), nil
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// decodeMetadata is the inverse of encodeMetadata.
func decodeMetadata(text []byte) (map[string]string, error) {
	object := make(map[string]json.RawMessage)
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, errors.New("metadata of a parked message is not an object")
	}
	metadata := make(map[string]string, len(object))
	for name, value := range object {
		if name == "" {
			if err := decodeRest(metadata, value); err != nil {
				return nil, err
			}
			continue
		}
		var s string
		if err := json.Unmarshal(value, &s); err != nil {
			return nil, errors.New("metadata of a parked message has a value that is not text")
		}
		metadata[name] = s
	}
	return metadata, nil
}

func decodeRest(metadata map[string]string, value json.RawMessage) error {
	var rest [][2][]byte // encoding/json reads base64 into bytes
	if err := json.Unmarshal(value, &rest); err != nil {
		return errors.New("metadata of a parked message cannot be decoded")
	}
	for _, pair := range rest {
		metadata[string(pair[0])] = string(pair[1])
	}
	return nil
}
