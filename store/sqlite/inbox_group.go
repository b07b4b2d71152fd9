package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// ApplyGroup implements [inbox.ClaimStore]. With one writer at a time, the order of the claims does
// not matter.
func (s *Store) ApplyGroup(ctx context.Context, claims []inbox.Claim, fn func(ctx context.Context, tx *sql.Tx, run []int) error) ([]inbox.Verdict, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	verdicts := make([]inbox.Verdict, len(claims))
	err := s.claiming(ctx, &claims[0], func(ctx context.Context, tx *sql.Tx) error {
		var run []int
		for i := range claims {
			if err := s.claimMember(ctx, tx, &claims[i], &verdicts[i]); err != nil {
				return fmt.Errorf("claim a group: %w", &sqlstore.OwnError{Err: err})
			}
			if verdicts[i] == inbox.Applied {
				run = append(run, i)
			}
		}
		switch {
		case len(run) > 0:
			if err := s.core.RunChecked(ctx, tx, func() error { return fn(ctx, tx, run) }); err != nil {
				return err
			}
			for _, i := range run {
				if err := s.core.NoteApplied(ctx, tx, claims[i].Consumer, claims[i].ID); err != nil {
					return err
				}
			}
			return nil
		case slices.Contains(verdicts, inbox.Followed):
			return nil
		}
		return sqlstore.ErrNothing
	})
	if err != nil && !errors.Is(err, sqlstore.ErrNothing) {
		return nil, err
	}
	return verdicts, nil
}

// claimMember claims one message of a group. It deletes the claim of a message that is too old.
func (s *Store) claimMember(ctx context.Context, tx *sql.Tx, c *inbox.Claim, verdict *inbox.Verdict) (err error) {
	if *verdict, err = s.claim(ctx, tx, c); err != nil || *verdict != inbox.TooOld {
		return err
	}
	return s.core.Unclaim(context.WithoutCancel(ctx), tx, c)
}
