package consumer_test

import (
	"context"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// simPauseSeen is how long after the beginning of a pause a transaction may begin: messages see the
// pause within a second, and may then wait twice for the place of a suspect.
const simPauseSeen = 5500 * time.Millisecond

// pause lets an operator pause or resume consumers.
func (s *simulation) pause() {
	if s.chance(2) {
		s.resume()
		return
	}
	p := control.Pause{Kind: control.Consumer, Name: s.cfg.Service + "/*", Reason: "simulated"}
	if s.chance(2) {
		p.Name = s.cfg.Service + "/" + s.queues[s.rnd.IntN(len(s.queues))].name
	}
	if s.chance(2) {
		p.Until = time.Now().Add(time.Duration(s.rnd.IntN(20_000)) * time.Millisecond)
	}
	s.tracef("%s", &p)
	_ = s.db.control.SetPause(context.Background(), p)
}

// resume ends all pauses.
func (s *simulation) resume() {
	pauses, _ := s.db.control.Pauses(context.Background())
	for _, p := range pauses {
		s.tracef("%s %s goes on", p.Kind, p.Name)
		_, _ = s.db.control.EndPause(context.Background(), p.Kind, p.Name)
	}
}

// begins checks, of schedules in which only messages do wrong, that no transaction of a paused
// consumer begins. Otherwise a process may have seen no pause, or asks what became of a commit.
func (s *simulation) begins(number int) {
	if s.wild.crash || s.wild.stop || s.wild.statements || s.wild.outage || s.wild.starve {
		return
	}
	pauses, _ := s.db.control.Pauses(context.Background())
	for _, p := range pauses {
		if age := time.Since(p.Since); age > simPauseSeen && p.Consumes(s.db.consumers[number-1].name) {
			s.mu.Lock()
			s.fail("a transaction of %s began %v after a pause", s.db.consumers[number-1].name, age)
			s.mu.Unlock()
		}
	}
}
