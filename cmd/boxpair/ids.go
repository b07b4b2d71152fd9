package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// idRange is a dispatch ID, or all dispatch IDs that begin with some digits.
type idRange struct {
	from, to uuid.UUID
	text     string
}

// leastDigits is the least number of digits of a short ID.
const leastDigits = 8

// parseID parses a dispatch ID, or its first digits.
func parseID(text string) (idRange, error) {
	if id, err := uuid.Parse(text); err == nil {
		return idRange{id, id, text}, nil
	}
	digits := strings.ToLower(strings.ReplaceAll(text, "-", ""))
	const all = 32
	if len(digits) < leastDigits || len(digits) > all {
		return idRange{}, fmt.Errorf("want a UUID, or at least its first %d digits", leastDigits)
	}
	var r idRange
	from, errFrom := hex.DecodeString(digits + strings.Repeat("0", all-len(digits)))
	to, errTo := hex.DecodeString(digits + strings.Repeat("f", all-len(digits)))
	if errFrom != nil || errTo != nil {
		return r, fmt.Errorf("want a UUID, or at least its first %d digits", leastDigits)
	}
	copy(r.from[:], from)
	copy(r.to[:], to)
	r.text = text
	return r, nil
}

func (r idRange) whole() bool { return r.from == r.to }

// rangesTo returns a setter that appends a dispatch ID, or its first digits, to list.
func rangesTo(list *[]idRange) func(string) error {
	return func(text string) error {
		r, err := parseID(text)
		if err != nil {
			return err
		}
		*list = append(*list, r)
		return nil
	}
}

// idsAfterFlags declares that a command takes dispatch IDs, or their first digits, after its flags.
func (s *settings) idsAfterFlags(usage string, to *[]idRange) {
	s.operands = usage
	set := rangesTo(to)
	s.operandsFrom = func(args []string) error {
		var errs []error
		for _, text := range args {
			if set(text) == nil {
				continue
			}
			byKey := ""
			if s.flags.Lookup("key") != nil {
				byKey = "; as a key: --key " + quoted(text)
			}
			errs = append(errs, fmt.Errorf("%s is no dispatch ID, nor at least its first %d digits%s; boxpair why %s finds the IDs of a key, source or correlation ID",
				plain(text), leastDigits, byKey, quoted(text)))
		}
		return errors.Join(errs...)
	}
}

// errNotHere is returned for digits with which no dispatch ID of a database begins.
var errNotHere = errors.New("no dispatch ID begins so")

// errAmbiguous is returned for digits with which several dispatch IDs begin.
var errAmbiguous = errors.New("several dispatch IDs begin so: give more digits")

// resolve returns the dispatch IDs of ranges in the database. Digits with which no dispatch ID begins
// are an error.
func (s *operators) resolve(ctx context.Context, ranges []idRange) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	for _, r := range ranges {
		if r.whole() {
			ids = append(ids, r.from)
			continue
		}
		found, err := s.matching(ctx, r)
		switch {
		case err != nil:
			return nil, err
		case len(found) == 0:
			return nil, fmt.Errorf("--id: %s: %w here; boxpair why also finds keys, sources and correlation IDs", r.text, errNotHere)
		case len(found) > 1:
			return nil, fmt.Errorf("--id: %s: %w", r.text, errAmbiguous)
		}
		ids = append(ids, found[0])
	}
	return ids, nil
}

// matching returns at most two different dispatch IDs of a range.
func (s *operators) matching(ctx context.Context, r idRange) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	add := func(id uuid.UUID) {
		if len(ids) == 0 || len(ids) == 1 && ids[0] != id {
			ids = append(ids, id)
		}
	}
	if s.isInbox {
		found, err := s.messages.SearchMessages(ctx, inbox.Query{From: r.from, To: r.to})
		for i := range found.Messages {
			add(found.Messages[i].ID)
		}
		return ids, err
	}
	found, err := s.events.Search(ctx, outbox.Query{From: r.from, To: r.to, Limit: 2})
	for i := range found.Events {
		add(found.Events[i].ID)
	}
	return ids, err
}
