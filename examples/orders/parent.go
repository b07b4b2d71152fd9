package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// counts are numbers that only the processes know, and not their databases.
type counts struct {
	Injected   int64 `json:"injected"`
	Suppressed int64 `json:"suppressed"`
}

func (c counts) plus(d counts) counts {
	return counts{c.Injected + d.Injected, c.Suppressed + d.Suppressed}
}

// runner runs the system until its context ends, in this process or in children.
type runner interface {
	run(ctx context.Context) error
	counts() counts
	kills() int
}

// inThisProcess runs the system in this process, without kills.
type inThisProcess[TX any] struct{ *system[TX] }

func (r inThisProcess[TX]) run(ctx context.Context) error { return r.system.run(ctx, roleSystem) }
func (r inThisProcess[TX]) kills() int                    { return 0 }

// runParent runs the whole example and reports whether the audit passed.
func runParent[TX any](ctx context.Context, opts options, open opener[TX], out io.Writer, logger *slog.Logger) (_ bool, err error) {
	if !opts.onPostgres() && opts.Dir == "" {
		if opts.Dir, err = os.MkdirTemp("", "boxpair-orders-*"); err != nil {
			return false, err
		}
		defer os.RemoveAll(opts.Dir)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.Timeout, fmt.Errorf("not done after %v, the time of -timeout", opts.Timeout))
	defer cancel()
	dbs, err := openAll(ctx, opts, open)
	if err != nil {
		return false, err
	}
	defer closeAll(dbs)
	for _, service := range services {
		if err := dbs[service].Migrate(ctx, schemaOf(service, serialType(opts))); err != nil {
			return false, fmt.Errorf("migrate the database of %s: %w", service, err)
		}
	}
	net, err := newNetwork(opts, logger)
	if err != nil {
		return false, err
	}
	if err := net.declare(); err != nil {
		return false, errors.Join(fmt.Errorf("declare subscriptions: %w", err), net.close())
	}
	run, err := newRun(ctx, dbs, opts.Orders)
	if err != nil {
		return false, errors.Join(err, net.close())
	}
	fmt.Fprintf(out, "run %d on %s: %d orders, %.0f %% of messages sent twice", run, backend(opts), opts.Orders, 100*opts.Duplicates)
	if opts.Chaos {
		fmt.Fprintf(out, ", %d kills", opts.Kills)
	}
	fmt.Fprintln(out)

	var r runner = inThisProcess[TX]{&system[TX]{opts: opts, logger: logger, dbs: dbs, net: net}}
	if opts.Chaos {
		r = newSupervisor(opts, logger)
	}
	started := time.Now()
	err = errors.Join(work(ctx, dbs, run, opts, r, out), net.close())
	if err != nil {
		return false, err
	}
	report, err := audit(ctx, dbs, run)
	if err != nil {
		return false, fmt.Errorf("audit: %w", err)
	}
	c := r.counts()
	report.Backend, report.Injected, report.Suppressed = backend(opts), c.Injected, c.Suppressed
	report.Kills, report.Seconds = r.kills(), time.Since(started).Seconds()
	report.judge(opts)
	return report.Audit == passed, report.print(out, opts.JSON)
}

func backend(opts options) string {
	if opts.onPostgres() {
		return "postgres+amqp"
	}
	return "sqlite+memory"
}

// work runs the system until no work is left, and shows its progress.
func work[TX any](ctx context.Context, dbs map[string]database[TX], run int64, opts options, r runner, out io.Writer) error {
	return together(ctx, r.run, func(ctx context.Context) error {
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		started := time.Now()
		var idle idleness
		for {
			select {
			case <-ctx.Done():
				if errors.Is(context.Cause(ctx), context.Canceled) {
					return errors.New("interrupted")
				}
				return context.Cause(ctx)
			case <-ticker.C:
			}
			p, err := readProgress(ctx, dbs, run)
			if err != nil {
				return err
			}
			p.print(out, time.Since(started), r, opts)
			if p.Confirmed+p.Cancelled < int64(opts.Orders) || r.kills() < opts.Kills {
				continue
			}
			left, err := outstanding(ctx, dbs)
			if err != nil || left == 0 || idle.lasts(left) > patience {
				return err // if work is left, the audit fails and reports it
			}
		}
	})
}

const (
	progressInterval = 500 * time.Millisecond
	// patience is how long the last messages may make no progress.
	patience = 20 * time.Second
)

// idleness measures how long a number has not changed.
type idleness struct {
	value int64
	since time.Time
}

func (i *idleness) lasts(value int64) time.Duration {
	if i.since.IsZero() || value != i.value {
		i.value, i.since = value, time.Now()
	}
	return time.Since(i.since)
}

// progress is the number of orders in each state.
type progress struct {
	Placed, Confirmed, Cancelled int64
}

func readProgress[TX any](ctx context.Context, dbs map[string]database[TX], run int64) (p progress, err error) {
	query := fmt.Sprintf(`SELECT status, count(*) FROM orders WHERE run = %d GROUP BY status`, run)
	err = dbs[serviceOrders].Query(ctx, query, func(scan func(...any) error) error {
		var status string
		var n int64
		if err := scan(&status, &n); err != nil {
			return err
		}
		p.Placed += n
		switch status {
		case "confirmed":
			p.Confirmed = n
		case "cancelled":
			p.Cancelled = n
		}
		return nil
	})
	return p, err
}

func (p progress) print(out io.Writer, elapsed time.Duration, r runner, opts options) {
	c := r.counts()
	fmt.Fprintf(out, "%5.1fs  placed %6d  confirmed %6d  cancelled %5d  duplicates %d sent, %d suppressed",
		elapsed.Seconds(), p.Placed, p.Confirmed, p.Cancelled, c.Injected, c.Suppressed)
	if opts.Chaos {
		fmt.Fprintf(out, "  kills %d", r.kills())
	}
	fmt.Fprintln(out)
}
