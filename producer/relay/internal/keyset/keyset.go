// Package keyset holds sets of hashes of keys. A relay keeps such sets for the next owner of a
// shard.
package keyset

import (
	"encoding/binary"
	"slices"
)

// Set holds short hashes of keys, ascending, without duplicates. Among a million keys, a missing
// key is taken for a member once in four thousand times; the events of the key then wait for a lap.
type Set []uint32

// Hash returns the FNV-1a hash of a key. Of two keys with the same hash, the second may wait for
// the first.
func Hash(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h
}

// Short returns the short form of a hash.
func Short(hash uint64) uint32 { return uint32(hash ^ hash>>32) }

// Has tells whether the set holds a key with the hash.
func (s Set) Has(hash uint64) bool {
	_, ok := slices.BinarySearch(s, Short(hash))
	return ok
}

// Bytes encodes the set for stores.
func (s Set) Bytes() []byte {
	b := make([]byte, 0, 4*len(s))
	for _, hash := range s {
		b = binary.BigEndian.AppendUint32(b, hash)
	}
	return b
}

// Parse is the inverse of [Set.Bytes]. The set is never nil; ok is false for bytes in any other
// form.
func Parse(b []byte) (s Set, ok bool) {
	s = make(Set, 0, len(b)/4)
	for ; len(b) >= 4; b = b[4:] {
		s = append(s, binary.BigEndian.Uint32(b))
	}
	return s, len(b) == 0 && slices.IsSorted(s)
}
