package main

import (
	"cmp"
	"context"
	"fmt"
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

// healEvent returns the commands that let an event go on, or the event for which the event waits, if
// there is one.
func (x *explainer) healEvent(ctx context.Context, s *operators, e *outbox.Found, pauses []control.Pause) ([]string, error) {
	for range mostSteps {
		if e.WaitsFor == 0 {
			break
		}
		found, err := s.events.Search(ctx, outbox.Query{Seqs: []int64{e.WaitsFor}, Limit: 1})
		if err != nil || len(found.Events) == 0 {
			return nil, err
		}
		e = &found.Events[0]
	}
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
			return []string{
				"# the broker's user that the relay connects as may not write there; the relay goes on by itself when it may",
				"rabbitmqctl list_permissions -p VHOST",
				"rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ   # patterns; WRITE has to match the exchange",
			}, nil
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

// healMessage returns the commands that let a message go on. A broker has confirmed it that many times.
func (x *explainer) healMessage(s *operators, m *inbox.Found, pauses []control.Pause, copies int) []string {
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
	edit := fmt.Sprintf("boxpair dead edit %s --payload-file FILE%s -m 'quantity was no number'   # if its content can never be handled", id, flag)
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
		return []string{look, redrive + "   # only if it was not applied before: the consumer no longer remembers", discard}
	case inbox.AlteredState:
		return []string{discard, strings.Replace(redrive, " -m", " --force -m", 1) + "   # if its other content is right"}
	case inbox.Retrying:
		if m.NextAttemptAt.Before(time.Now()) {
			return []string{"# no process of " + plain(m.Consumer) + " takes it up: start the consumer"}
		}
		return []string{
			fmt.Sprintf("boxpair dead redrive %s --state retrying%s -m 'the cause is mended'   # at once, not %s", id, flag, x.due(m.NextAttemptAt)),
			edit, discard,
		}
	case inbox.Discarded:
		return []string{fmt.Sprintf("boxpair dead redrive %s --state discarded%s -m 'needed after all'", id, flag)}
	}
	return nil
}
