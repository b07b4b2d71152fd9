package sqlite

// TiedTransactions tells how many transactions s remembers the writer of.
func TiedTransactions(s *Store) int {
	return s.core.Writers.Len()
}
