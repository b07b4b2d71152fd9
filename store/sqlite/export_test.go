package sqlite

// TiedTransactions returns the number of transactions whose writer s remembers.
func TiedTransactions(s *Store) int {
	return s.core.Writers.Len()
}
