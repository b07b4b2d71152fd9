package ops

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// overview is the state of all outboxes and inboxes.
type overview struct {
	State    health.State
	Problems []problem
	Outboxes []outboxCard
	Inboxes  []inboxCard
}

// problem is a problem in words, with a link to the page that heals it.
type problem struct {
	State  health.State
	Source string
	Text   string
	Link   string
	Action string
}

type outboxCard struct {
	Name   string
	State  health.State
	Now    outboxState
	Sample *sample
	Err    string
}

type inboxCard struct {
	Name      string
	State     health.State
	Consumers []consumerCard
	Pauses    []control.Pause
	Err       string
}

type consumerCard struct {
	consumerState
	State health.State
}

// overview builds the first page.
func (h *Handler) overview(r *http.Request) (view, error) {
	o := overview{State: health.Healthy}
	for _, s := range h.outboxes {
		now, err := s.read(r.Context())
		card := outboxCard{Name: s.Name, Now: now, Sample: s.latest()}
		if err != nil {
			card.State, card.Err = health.Unhealthy, err.Error()
			o.Problems = append(o.Problems, problem{health.Unhealthy, s.Name, "the outbox cannot be read: " + err.Error(), "", ""})
		} else {
			report := now.report(h.cfg.Health)
			card.State = report.State
			for _, text := range report.Problems {
				o.Problems = append(o.Problems, h.outboxProblem(s.Name, text, &now))
			}
		}
		o.State = health.Worst(o.State, card.State)
		o.Outboxes = append(o.Outboxes, card)
	}
	for _, s := range h.inboxes {
		card := h.inboxCard(r, s, &o)
		o.State = health.Worst(o.State, card.State)
		o.Inboxes = append(o.Inboxes, card)
	}
	slices.SortStableFunc(o.Problems, func(a, b problem) int { return cmp.Compare(rank(b.State), rank(a.State)) })
	return view{"overview", "Overview", true, o}, nil
}

func rank(s health.State) int {
	return slices.Index([]health.State{health.Healthy, health.Degraded, health.Unhealthy}, s)
}

func (h *Handler) inboxCard(r *http.Request, s *inboxSource, o *overview) inboxCard {
	now, err := s.read(r.Context())
	card := inboxCard{Name: s.Name, State: health.Healthy, Pauses: now.Pauses}
	if err != nil {
		card.State, card.Err = health.Unhealthy, err.Error()
		o.Problems = append(o.Problems, problem{health.Unhealthy, s.Name, "the inbox cannot be read: " + err.Error(), "", ""})
		return card
	}
	for _, c := range now.Consumers {
		report := h.cfg.Health.Inbox(c.Stats)
		card.State = health.Worst(card.State, report.State)
		card.Consumers = append(card.Consumers, consumerCard{c, report.State})
		for _, text := range report.Problems {
			o.Problems = append(o.Problems, h.inboxProblem(s.Name, c.Name, text, &c))
		}
	}
	return card
}

// split returns the state and the words of a problem of a [health.Report].
func split(text string) (health.State, string) {
	state, words, found := strings.Cut(text, ": ")
	if !found {
		return health.Degraded, text
	}
	return health.State(state), words
}

// outboxProblem describes the problem of an outbox, and finds the page that heals it.
func (h *Handler) outboxProblem(source, text string, now *outboxState) problem {
	state, words := split(text)
	p, st := problem{State: state, Source: source, Text: words}, &now.Stats
	waiting := func(where string) {
		p.Link, p.Action = h.link("/events", "outbox", source, "state", where), "See the events"
	}
	switch {
	case strings.HasPrefix(words, "dead events"):
		p.Text = plural(st.Dead, "event has", "events have") + " used up all attempts, and will not be sent until you decide"
		p.Link, p.Action = h.link("/dead", "source", source), "See the causes"
	case strings.HasPrefix(words, "routes"):
		p.Text = routeWords(now.Routes)
		p.Link, p.Action = h.link("/routes"), "See the routes"
	case strings.HasPrefix(words, "no relay"), strings.HasPrefix(words, "no shard"):
		p.Text += ": what is written waits"
		p.Link, p.Action = h.link("/relays"), "See the relays"
	case len(now.Pauses) > 0:
		p.Text += "; something is paused"
		p.Link, p.Action = h.link("/pauses"), "See the pauses"
	case len(now.Routes) > 0:
		p.Link, p.Action = h.link("/routes"), "See the routes"
	case st.Pending > 0:
		waiting(string(outbox.PendingState))
	default:
		waiting(string(outbox.Retrying))
	}
	return p
}

// routeWords names the topics that cannot be sent, since when, and the error of a single topic.
func routeWords(routes []outbox.StalledRoute) string {
	var names []string
	longest, last := time.Duration(0), ""
	for i := range routes {
		if r := &routes[i]; r.State != outbox.RoutePaused {
			longest, last = max(longest, r.For), r.LastError
			if !slices.Contains(names, r.Topic) {
				names = append(names, r.Topic)
			}
		}
	}
	more := ""
	if n := len(names) - named; n > 0 {
		names, more = names[:named], fmt.Sprintf(" and %d more", n)
	}
	words := "nothing can be sent to " + strings.Join(names, ", ") + more + ", for " + span(longest)
	if len(names) == 1 && last != "" {
		words += ": " + clip(last, mostWords)
	}
	return words
}

const (
	// named is how many topics a problem names.
	named = 3
	// mostWords is how many characters of an error a problem shows.
	mostWords = 140
)

// plural returns a number with its noun.
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// inboxProblem describes the problem of a consumer, and finds the page that heals it.
func (h *Handler) inboxProblem(source, consumer, text string, c *consumerState) problem {
	state, words := split(text)
	p := problem{State: state, Source: consumer, Text: words}
	s, e := &c.Stats, &c.Stats.Effects
	messages, calls := s.Dead+s.TooOld+s.Altered, e.Dead+e.Uncertain
	operator := strings.Contains(words, "for an operator")
	switch {
	case operator && messages > 0:
		p.Text = plural(messages, "message waits", "messages wait") + " for you to decide"
		if calls > 0 {
			p.Text += ", and " + plural(calls, "effect", "effects")
		}
		p.Link, p.Action = h.link("/dead", "source", source), "See the causes"
	case operator:
		p.Text = plural(calls, "effect waits", "effects wait") + " for you to decide"
		if e.Uncertain > 0 {
			p.Text += ": " + count(e.Uncertain) + " may have been carried out"
		}
		p.Link, p.Action = h.link("/effects", "consumer", consumer), "See the effects"
	case c.Paused != nil:
		p.Text += "; the consumer is paused"
		p.Link, p.Action = h.link("/pauses"), "See the pauses"
	case strings.Contains(words, "effect that is not done"), s.Retrying+s.Following == 0 && e.Pending+e.Doing+e.Answered > 0:
		p.Link, p.Action = h.link("/effects", "consumer", consumer, "state", string(inbox.EffectPending)), "See the effects"
	default:
		p.Link, p.Action = h.link("/messages", "inbox", source, "consumer", consumer), "See the messages"
	}
	return p
}
