package amqp

// SetConfirmsAhead sets how many later confirms an unanswered message may hold up, before p is used.
func (p *Publisher) SetConfirmsAhead(n uint64) { p.confirmsAhead = n }
