package ops_test

import (
	"context"
	"fmt"
	"html"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// numbered returns the dispatch ID of the message with a number.
func numbered(n int64) uuid.UUID {
	return uuid.MustParse(fmt.Sprintf("4b9d2a51-0000-4000-8000-%012d", n))
}

// behind returns the numbers of a page of 1 to all.
func behind(after int64, limit int, all int64) (list []int64) {
	for n := after + 1; n <= all && len(list) < limit; n++ {
		list = append(list, n)
	}
	return list
}

// manyEffects is a ledger of uncertain effects.
type manyEffects struct {
	ops.Effects

	all int64
}

func (m manyEffects) List(_ context.Context, f inbox.EffectFilter) (list []inbox.Effect, err error) {
	for _, n := range behind(f.After, f.Limit, m.all) {
		list = append(list, inbox.Effect{Seq: n, Consumer: "stock/pay", ID: numbered(n), Key: numbered(n), State: inbox.EffectUncertain})
	}
	return list, nil
}

// manyMessages is an inbox of dead messages.
type manyMessages struct {
	ops.InboxOperator

	all int64
}

func (m manyMessages) ListParked(_ context.Context, f inbox.Filter) (list []inbox.Parked, err error) {
	for _, n := range behind(f.After, f.Limit, m.all) {
		list = append(list, inbox.Parked{Message: inbox.Message{ID: numbered(n)}, Consumer: "stock/reserve", State: f.States[0], Seq: n})
	}
	return list, nil
}

// TestLongListsAreReadPageByPage, with every row on exactly one page.
func TestLongListsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		page  string
		all   int64
		pages int
	}{
		"effects":                  {"/effects", 120, 3},
		"effects of one full page": {"/effects", 50, 1},
		"messages":                 {"/messages?state=dead&consumer=stock/reserve&after=0", 120, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := over(t, newScene(t, false), func(c2 *ops.Config) {
				c2.Inboxes = []ops.Inbox{{Name: "stock", Operator: manyMessages{c2.Inboxes[0].Operator, c.all}, Effects: manyEffects{c2.Inboxes[0].Effects, c.all}}}
			})
			seen, pages := make(map[string]int), 0
			for page := c.page; page != ""; pages++ {
				body := r.page(page)
				for _, id := range regexp.MustCompile(`href="/messages/([0-9a-f-]{36})"`).FindAllStringSubmatch(body, -1) {
					seen[id[1]]++
				}
				page = ""
				if next := regexp.MustCompile(`class="button" href="(/(?:effects|messages)[^"]*after=[^"]*)"`).FindStringSubmatch(body); next != nil {
					page = html.UnescapeString(next[1])
				}
			}
			if pages != c.pages || len(seen) != int(c.all) {
				t.Errorf("%d pages show %d of %d", pages, len(seen), c.all)
			}
			for id, times := range seen {
				if times != 1 {
					t.Errorf("%s is shown %d times", id, times)
				}
			}
		})
	}
}

func TestNewestMessagesLeadToAllOfThem(t *testing.T) {
	t.Parallel()
	r := over(t, newScene(t, false), func(c *ops.Config) {
		c.Inboxes = []ops.Inbox{{Name: "stock", Operator: manyMessages{c.Inboxes[0].Operator, 120}}}
	})
	r.shows("/messages?state=dead", "All, the oldest first", `href="/messages?after=0&amp;inbox=stock&amp;state=dead"`)
	if body := r.page("/messages?state=dead&after=100"); strings.Contains(body, "Next messages") {
		t.Error("the last page has a next one")
	}
}

// someShards is an outbox whose relays own few shards.
type someShards struct {
	ops.OutboxOperator

	owned []int
}

func (s *someShards) Stats(context.Context) (outbox.Stats, error) {
	return outbox.Stats{Relays: 1, Owned: len(s.owned)}, nil
}

func (s *someShards) ListRoutes(context.Context) ([]outbox.StalledRoute, error) { return nil, nil }

func (s *someShards) Pauses(context.Context) ([]control.Pause, error) { return nil, nil }

func (s *someShards) ListRelays(context.Context) ([]outbox.Relay, error) {
	return []outbox.Relay{{Name: "relay-a", Shards: s.owned}}, nil
}

func TestShardsWithoutARelayAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &someShards{}
		for shard := range idgen.Shards {
			if shard != 3 && shard != 7 && shard != 8 {
				s.owned = append(s.owned, shard)
			}
		}
		h, err := ops.New(ops.Config{Outboxes: []ops.Outbox{{Name: "shop", Operator: s}}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{T: t, handler: h}
		r.shows("/relays", "3 shards have no relay (3, 7–8): their events wait.")
		time.Sleep(20 * time.Second)
		r.shows("/relays", "3 shards have no relay (3, 7–8), for 20 s at least: their events wait.")
		time.Sleep(time.Hour) // nobody has looked
		r.shows("/relays", "3 shards have no relay (3, 7–8): their events wait.")
		s.owned = make([]int, idgen.Shards)
		time.Sleep(time.Second)
		if body := r.page("/relays"); strings.Contains(body, "no relay") {
			t.Error("shards have no relay")
		}
	})
}
