package sqlite

// TiedTransactions tells how many transactions s remembers the writer of.
func TiedTransactions(s *Store) int {
	s.writers.mu.Lock()
	defer s.writers.mu.Unlock()
	return len(s.writers.of)
}
