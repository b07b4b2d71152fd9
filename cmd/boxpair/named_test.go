package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/inbox"
)

// searchedInbox answers searches of an inbox, and counts them.
type searchedInbox struct {
	inbox.Searcher

	all, waiting inbox.Results
	asked        []inbox.Query
}

func (p *searchedInbox) SearchMessages(_ context.Context, q inbox.Query) (inbox.Results, error) {
	p.asked = append(p.asked, q)
	if len(q.States) > 0 {
		return p.waiting, nil
	}
	return p.all, nil
}

// TestInboxIsSearchedOnceForAName that it has a few messages of: each search reads all that are parked.
func TestInboxIsSearchedOnceForAName(t *testing.T) {
	t.Parallel()
	const name = "customer-7"
	message := func(n int, key string, state inbox.State) inbox.Found {
		return inbox.Found{Message: inbox.Message{ID: id(n), Key: key}, State: state}
	}
	results := func(more bool, messages ...inbox.Found) inbox.Results {
		return inbox.Results{Messages: messages, More: more}
	}
	for title, c := range map[string]struct {
		all, waiting inbox.Results
		as           namedAs
		ids          []uuid.UUID
		searches     int
	}{
		"unknown":                    {searches: 1},
		"done":                       {all: results(false, message(2, name, inbox.Discarded), message(1, name, inbox.Discarded)), as: byName, ids: []uuid.UUID{id(1), id(2)}, searches: 1},
		"waits by another key":       {all: results(false, message(1, "customer-8", inbox.Dead)), as: byName, ids: []uuid.UUID{id(1)}, searches: 1},
		"waits, and others are done": {all: results(false, message(3, name, inbox.Discarded), message(2, name, inbox.Dead), message(1, name, inbox.Retrying)), as: byWaiting, ids: []uuid.UUID{id(1), id(2)}, searches: 1},
		"more that is done": {
			all: results(true, message(3, name, inbox.Discarded)), waiting: results(false, message(1, name, inbox.Dead)),
			as: byWaiting, ids: []uuid.UUID{id(1)}, searches: 2,
		},
	} {
		p := &searchedInbox{all: c.all, waiting: c.waiting}
		found, err := (&operators{messages: p}).messagesNamed(t.Context(), name, mostNamed)
		if want := namings(c.as, c.ids); err != nil || !slices.Equal(found, want) || len(p.asked) != c.searches {
			t.Errorf("%s: found %v, %v, by %d searches; want %v by %d", title, found, err, len(p.asked), want, c.searches)
		}
	}
}

// TestDatabasesAreAskedAtOnce, and their answers are in the order of the databases.
func TestDatabasesAreAskedAtOnce(t *testing.T) {
	t.Parallel()
	here, gone := testenv.Postgres(t), "postgres://127.0.0.1:1/gone"
	d := &databases{opened: &opened{}}
	defer d.opened.close()
	for _, url := range []string{here, gone, here} {
		one, err := parseTarget(url)
		ok(t, err)
		d.outboxes = append(d.outboxes, one)
	}
	d.inboxes = d.outboxes[:1]
	var all sync.WaitGroup
	all.Add(3) // without the one that cannot be opened
	found, err := gather(t.Context(), d, func(s *operators) ([]bool, error) {
		all.Done()
		all.Wait()
		return []bool{s.isInbox}, nil
	})
	if want := []bool{false, false, true}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
	if err == nil || !strings.Contains(err.Error(), "--outbox 127.0.0.1:1/gone") {
		t.Errorf("error %v", err)
	}
}
