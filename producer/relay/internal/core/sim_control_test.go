package core

import (
	"context"
	"strings"

	"github.com/boxpair/boxpair/store/control"
)

// downstream is the route of a topic; one of them has a rate limit.
func (s *simulation) downstream(topic string) Downstream {
	name, _, _ := strings.Cut(topic, "/")
	d := Downstream{Name: name}
	if s.wild.rates && name == "r1" {
		d.PerSecond = s.rate
	}
	return d
}

func (s *simulation) matches(pattern, topic string) bool {
	return strings.HasPrefix(topic, pattern+"/")
}

// pauseRoute pauses a route, as the topics that begin with its name or as a downstream, or resumes it.
func (s *simulation) pauseRoute(name string) {
	kind := []control.Kind{control.Topic, control.Downstream}[s.rnd.IntN(2)]
	switch _, paused := s.paused[name]; {
	case paused:
		delete(s.paused, name)
		for _, kind := range []control.Kind{control.Topic, control.Downstream} {
			_, _ = s.store.EndPause(context.Background(), kind, name) // cannot fail
		}
	default:
		s.paused[name] = s.now
		_ = s.store.SetPause(context.Background(), control.Pause{Kind: kind, Name: name, Reason: "r"})
	}
}

// checkPauses looks whether an event is sent on a route that has been paused for a while.
func (s *simulation) checkPauses(rel *simRelay, e *Entry) {
	name, _, _ := strings.Cut(e.Topic, "/")
	if since, paused := s.paused[name]; paused && s.now-since > max(pausesHold, 2*rel.core.pauses.took) && !s.wild.storeErrors {
		s.fail("%s sent %d on a route that was paused %v before", rel.core.cfg.Name, e.Seq, s.now-since)
	}
}
