package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/internal/topics"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// mostSteps bounds how far a chain of waiting events is followed.
const mostSteps = 10

// head returns the event of e's key for which e waits, or e.
func (s *operators) head(ctx context.Context, e *outbox.Found) (*outbox.Found, error) {
	for range mostSteps {
		if e.WaitsFor == 0 {
			break
		}
		found, err := s.events.Search(ctx, outbox.Query{Seqs: []int64{e.WaitsFor}, Limit: 1})
		if err != nil || len(found.Events) == 0 {
			return e, err
		}
		e = &found.Events[0]
	}
	return e, nil
}

// healEvent returns the commands that let an event go on that waits for no other.
func (x *explainer) healEvent(ctx context.Context, s *operators, e *outbox.Found, pauses []control.Pause) ([]string, error) {
	for i := range pauses {
		p := &pauses[i]
		if p.Kind == control.Topic && topics.Match(p.Name, e.Topic) && e.State != outbox.DeliveredState {
			return []string{"boxpair resume --topic " + quoted(p.Name) + x.flag(s) + meant(p)}, nil
		}
	}
	id, flag := e.ID.String(), x.flag(s)
	switch e.State {
	case outbox.Dead:
		return []string{
			fmt.Sprintf("boxpair dead redrive %s%s -m 'the cause is mended'", id, flag),
			fmt.Sprintf("boxpair dead discard %s%s -m 'nobody needs it'", id, flag),
		}, nil
	case outbox.Retrying:
		if e.NextAttemptAt.Before(time.Now()) {
			return x.healRoute(ctx, s, e)
		}
		return []string{fmt.Sprintf("boxpair dead redrive %s --state retrying%s -m 'the cause is mended'   # at once, not %s", id, flag, x.due(e.NextAttemptAt))}, nil
	case outbox.Discarded:
		if copied, is := editedCopy(e.Reason); is {
			return []string{fmt.Sprintf("boxpair why %s%s   # the edited copy takes its place", copied, flag)}, nil
		}
		return []string{fmt.Sprintf("boxpair dead redrive %s --state discarded%s -m 'needed after all'", id, flag)}, nil
	case outbox.DeferredState:
		return []string{fmt.Sprintf("boxpair deferred move %s --at 0s%s   # at once, not %s", id, flag, x.due(e.NextAttemptAt))}, nil
	case outbox.PendingState, outbox.Following:
		return x.healRoute(ctx, s, e)
	}
	return nil, nil
}

func (x *explainer) due(at time.Time) string {
	if at.IsZero() {
		return "later"
	}
	return x.when(at)
}

// healRoute returns the commands that let a relay send a pending event.
func (x *explainer) healRoute(ctx context.Context, s *operators, e *outbox.Found) ([]string, error) {
	if strings.Contains(e.Why, "no relay owns") || strings.Contains(e.Why, "has expired") {
		flags := x.flag(s)
		if x.origin.context == "" && x.origin.flags {
			flags += " --amqp …"
		}
		return []string{"boxpair relay" + flags + "   # start a relay: none looks after this event"}, nil
	}
	routes, err := s.outbox.ListRoutes(ctx)
	for _, r := range routes {
		if r.Topic != e.Topic {
			continue
		}
		switch {
		case r.State == outbox.RouteRefusing && strings.Contains(r.LastError, "ACCESS_REFUSED"):
			return healAccess(r.LastError), nil
		case r.State == outbox.RouteRefusing && !strings.Contains(r.LastError, "NO_ROUTE"):
			return []string{x.doctor(true) + "   # the broker refuses the event: is a queue full, does a policy limit it?"}, nil
		case r.State == outbox.RouteRefusing:
			return []string{
				fmt.Sprintf("boxpair declare --topic %s --consumer …%s   # the queue is %s_…; its consumer does the same when it starts", quoted(e.Topic), x.origin.broker(), plain(e.Topic)),
				fmt.Sprintf("boxpair relay … --drop-unroutable %s   # only if nobody has to get topic %s", quoted(e.Topic), plain(e.Topic)),
			}, nil
		}
		return []string{"# the broker does not answer: the relay goes on by itself when it does"}, nil
	}
	if err == nil && time.Since(e.WrittenAt) > slow {
		return []string{x.doctor(false) + "   # does a session block the relay, or a transaction its reading?"}, nil
	}
	return nil, err
}

// refusedAccess finds what RabbitMQ refuses to whom.
var refusedAccess = regexp.MustCompile(`access to (\w+ '[^']*') in vhost '([^']*)' refused for user '([^']*)'`)

// healAccess returns the commands that give the relay's user the rights that an error says are missing.
func healAccess(text string) []string {
	what, vhost, user := "the exchange", "VHOST", "USER"
	if m := refusedAccess.FindStringSubmatch(text); m != nil {
		what, vhost, user = plain(m[1]), quoted(m[2]), quoted(m[3])
	}
	return []string{
		"# the relay's user may not write there; the relay goes on by itself when it may",
		"rabbitmqctl list_permissions -p " + vhost + "   # the patterns in force",
		fmt.Sprintf("rabbitmqctl set_permissions -p %s %s CONFIGURE WRITE READ   # replaces all three patterns; WRITE has to match %s too", vhost, user, what),
	}
}

// slow is the age from which on a pending event is held up: a relay with a route to the broker sends
// within milliseconds.
const slow = 10 * time.Second

// meant returns a comment with the author and the reason of a pause.
func meant(p *control.Pause) string {
	return "   # paused by " + plain(p.By) + ": " + clipped(p.Reason)
}

// doctor returns the command that looks at all given databases, since the cause of what one of them shows
// may be in another, and with broker at RabbitMQ. Windows are compared with the events of an outbox.
func (x *explainer) doctor(broker bool) string {
	text := "boxpair doctor"
	if broker {
		text += x.management()
	}
	text += x.origin.flag()
	for i := range len(x.outboxes) + len(x.inboxes) {
		if setting, t := x.target(i); x.origin.flags {
			text += " --" + setting + " " + quoted(t.shown)
		}
	}
	if len(x.outboxes) == 0 {
		text += " --outbox …"
	}
	return text
}

// management returns the flags for RabbitMQ's management API, with a leading space, or "" if the settings
// beside the flags name it.
func (x *explainer) management() string {
	if x.broker.URL != "" && !x.origin.flags {
		return ""
	}
	vhost := "VHOST"
	if x.broker.URL+x.broker.VHost != "" {
		vhost = quoted(cmp.Or(x.broker.VHost, "/"))
	}
	return " --management URL --vhost " + vhost
}

// editedAs begins the reason of a message that an operator has edited, before the ID of the copy.
const editedAs = "edited as "

// editedCopy returns the copy of a message that was edited.
func editedCopy(reason string) (id uuid.UUID, is bool) {
	text, is := strings.CutPrefix(reason, editedAs)
	if !is {
		return uuid.Nil, false
	}
	text, _, _ = strings.Cut(text, ":")
	id, err := uuid.Parse(text)
	return id, err == nil
}

// ranOut tells whether the error of an attempt says that time ran out: the content of the message is
// hardly to blame.
func ranOut(text string) bool {
	return strings.Contains(text, "deadline exceeded") || strings.Contains(text, "lock timeout") || strings.Contains(text, "canceling statement")
}

// healMessage returns the commands that let a message go on. running are the handlers of all processes.
// A broker has confirmed the message copies times.
func (x *explainer) healMessage(s *operators, m *inbox.Found, pauses []control.Pause, running []inbox.RunningHandler, copies int) []string {
	if m.State == inbox.AppliedState {
		return nil
	}
	for i := range pauses {
		if pauses[i].Consumes(m.Consumer) {
			return []string{"boxpair resume --consumer " + quoted(pauses[i].Name) + x.flag(s) + meant(&pauses[i])}
		}
	}
	id, flag := m.ID.String(), " --consumer "+quoted(m.Consumer)+x.flag(s)
	if m.WaitsFor != uuid.Nil {
		return []string{fmt.Sprintf("boxpair why %s%s", m.WaitsFor, x.flag(s))}
	}
	if state, is := strings.CutPrefix(string(m.State), "effect_"); is {
		key := effects.Key(m.Consumer, m.ID)
		switch inbox.EffectState(state) {
		case inbox.EffectUncertain:
			return []string{
				fmt.Sprintf("boxpair effects resolve --effect %s --result RESULT%s -m 'the other side has carried it out'", key, x.flag(s)),
				fmt.Sprintf("boxpair effects redrive --effect %s%s -m 'the other side has not carried it out'", key, x.flag(s)),
			}
		case inbox.EffectDead:
			return []string{fmt.Sprintf("boxpair effects redrive --effect %s%s -m 'the cause is mended'", key, x.flag(s))}
		}
		return nil
	}
	redrive := fmt.Sprintf("boxpair dead redrive %s%s -m 'the cause is mended'", id, flag)
	discard := fmt.Sprintf("boxpair dead discard %s%s -m 'nobody needs it'", id, flag)
	edit := fmt.Sprintf("boxpair dead edit %s --payload-file FILE%s -m 'what was wrong'   # if its content can never be handled", id, flag)
	switch m.State {
	case inbox.Dead:
		return []string{redrive, edit, discard}
	case inbox.TooOldState:
		look := x.doctor(false) + "   # is the window of " + plain(m.Consumer) + " shorter than events may be sent again?"
		if copies > 1 {
			return []string{
				look, fmt.Sprintf("%s   # it was sent %d times: the consumer has probably applied an earlier copy", discard, copies),
				redrive + "   # only if its effect is missing: the consumer no longer remembers",
			}
		}
		once := ""
		if copies == 1 {
			once = "; it was sent once, so probably not"
		}
		return []string{look, redrive + "   # only if it was not applied before: the consumer no longer remembers" + once, discard}
	case inbox.AlteredState:
		return []string{discard, strings.Replace(redrive, " -m", " --force -m", 1) + "   # if its other content is right"}
	case inbox.Retrying:
		runs := slices.ContainsFunc(running, func(h inbox.RunningHandler) bool { return h.Consumer == m.Consumer })
		again := fmt.Sprintf("boxpair dead redrive %s --state retrying%s -m 'the cause is mended'   # at once, not %s", id, flag, x.due(m.NextAttemptAt))
		switch due := m.NextAttemptAt.Before(time.Now()); {
		case due && !runs:
			return []string{"# no process of " + plain(m.Consumer) + " takes it up: start the consumer"}
		case due:
			return []string{x.doctor(false) + "   # its handler is at work: does a session block it?"}
		case ranOut(m.LastError):
			return []string{x.doctor(false) + "   # its handler ran out of time: does a session block it?", again}
		}
		return []string{again, edit, discard}
	case inbox.Discarded:
		if copied, is := editedCopy(m.Reason); is {
			return []string{fmt.Sprintf("boxpair why %s%s   # the edited copy takes its place", copied, x.flag(s))}
		}
		return []string{fmt.Sprintf("boxpair dead redrive %s --state discarded%s -m 'needed after all'", id, flag)}
	}
	return nil
}
