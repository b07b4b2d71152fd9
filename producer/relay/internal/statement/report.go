package statement

import (
	"context"

	"github.com/boxpair/boxpair/store/outbox"
)

// Report tells operators what the relay does.
type Report struct {
	outbox.Report
}

// Op is [OpReport].
func (*Report) Op() Op { return OpReport }

// Execute implements [Statement].
func (s *Report) Execute(ctx context.Context, store outbox.RelayStore, by *Asker) error {
	return store.ReportRelay(ctx, by.Name, s.Report)
}
