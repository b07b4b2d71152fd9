package consumer_test

import (
	"bytes"
	"context"
	"slices"

	"github.com/boxpair/boxpair/store/inbox"
)

// ApplyGroup keeps the contract of [inbox.ClaimStore]. Its steps are those of Apply.
func (s *fakeStore) ApplyGroup(ctx context.Context, claims []inbox.Claim, fn func(context.Context, *fakeTx, []int) error) ([]inbox.Verdict, error) {
	if err := s.step("begin"); err != nil {
		return nil, err
	}
	verdicts := make([]inbox.Verdict, len(claims))
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(claims[a].ID[:], claims[b].ID[:]) })
	committed := false
	for _, i := range order {
		v, end, err := s.claim(ctx, claims[i])
		if err != nil {
			return nil, err
		}
		if verdicts[i] = v; end != nil {
			defer func() { end(committed) }()
		}
	}
	var run []int
	for i, v := range verdicts {
		switch {
		case v != inbox.Applied:
		case claims[i].Key != "" && s.wouldFollow(claims[i]):
			verdicts[i] = inbox.Followed
		default:
			run = append(run, i)
		}
	}
	tx := &fakeTx{}
	if len(run) > 0 {
		if err := s.step("claimed"); err != nil {
			return nil, err
		}
		if err := fn(ctx, tx, run); err != nil {
			return nil, err
		}
	}
	err := s.commit(ctx, tx, func() {
		committed = true
		for i, v := range verdicts {
			switch v {
			case inbox.Followed:
				s.follows(claims[i])
			case inbox.Applied:
				s.forget(claims[i])
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return verdicts, nil
}

func (s *fakeStore) wouldFollow(c inbox.Claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked(c.Consumer, c.Key, 0)
}
