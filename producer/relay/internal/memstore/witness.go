package memstore

import (
	"context"
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

// Witnessed is a [Store] with sessions, which a test begins and ends by itself.
type Witnessed struct{ *Store }

var _ outbox.Witnesser = Witnessed{}

// ListenWitnessed implements [outbox.Witnesser].
func (f Witnessed) ListenWitnessed(ctx context.Context, _ func(int64), woken func(string)) error {
	return f.Listen(ctx, woken)
}

// witnessed returns the recorded witness of a shard, or 0.
func (s *Shard) witnessed() int64 {
	if s.Owner == "" || s.Attested != s.Epoch {
		return 0
	}
	return s.Witness
}

// Attest implements [outbox.Witnesser].
func (f *Store) Attest(_ context.Context, relay string, leases []outbox.Lease, witness int64) error {
	leave, err := f.Enter("Attest")
	if err != nil {
		return err
	}
	defer leave()
	for _, l := range leases {
		if !f.Sessions[witness] {
			witness = 0
		}
		if f.Owns(relay, l) {
			f.Shards[l.Shard].Witness, f.Shards[l.Shard].Attested = witness, l.Epoch
		}
	}
	return nil
}

// EndedWitnesses implements [outbox.Witnesser].
func (f *Store) EndedWitnesses(context.Context) ([]int64, error) {
	leave, err := f.Enter("EndedWitnesses")
	if err != nil {
		return nil, err
	}
	defer leave()
	var ended []int64
	for i := range f.Shards {
		if w := f.Shards[i].witnessed(); w != 0 && !f.Sessions[w] && !slices.Contains(ended, w) {
			ended = append(ended, w)
		}
	}
	return ended, nil
}

// Expire implements [outbox.Witnesser].
func (f *Store) Expire(_ context.Context, witnesses []int64) error {
	leave, err := f.Enter("Expire")
	if err != nil {
		return err
	}
	defer leave()
	for i := range f.Shards {
		if s := &f.Shards[i]; slices.Contains(witnesses, s.witnessed()) && s.Until > f.Clock() {
			s.Until = f.Clock()
			f.Relays[s.Owner] = min(f.Relays[s.Owner], f.Clock())
		}
	}
	return nil
}
