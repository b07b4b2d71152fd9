package amqp

import "time"

// SetConfirmsAhead sets how many later confirms an unanswered message may hold up, before p is
// used.
func (p *Publisher) SetConfirmsAhead(n uint64) { p.judge.confirmsAhead = n }

// SetTimeout sets how long the broker may take to answer a request, before s is used.
func (s *Subscriber) SetTimeout(d time.Duration) { s.timeout = d }
