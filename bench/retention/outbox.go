package retention

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
)

const perReceipt = 100

// outbox runs a janitor that removes n events while a writer commits.
func outbox(ctx context.Context, pool *pgxpool.Pool, n int, share float64, results map[string]any) error {
	if _, err := postgres.Migrate(ctx, pool, postgres.Config{}); err != nil {
		return err
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		return err
	}
	if err := fill(ctx, pool, n); err != nil {
		return err
	}
	out, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return err
	}
	alone, err := commits(ctx, out, 5*time.Second)
	if err != nil {
		return err
	}
	janitor, err := producer.NewJanitor(store, producer.JanitorConfig{Retention: time.Second, Share: share, Progress: progress(n)})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	var report producer.JanitorReport
	go func() {
		var err error
		report, err = janitor.RunOnce(ctx)
		done <- err
	}()
	beside, err := commits(ctx, out, 5*time.Second)
	if err != nil {
		return err
	}
	if err := <-done; err != nil {
		return err
	}
	rate := float64(report.Events) / report.Took.Seconds()
	results["removed"], results["removed_per_second"] = report.Events, int(rate)
	results["longest_batch_ms"], results["batches"] = report.LongestBatch.Milliseconds(), report.Batches
	results["commit_us_alone"], results["commit_us_beside"] = alone.Microseconds(), beside.Microseconds()
	say("outbox: %d events removed in %v, %.0f a second, longest batch %v", report.Events, report.Took.Round(time.Second), rate, report.LongestBatch)
	say("outbox: a commit takes %v alone, %v beside it (median)", alone, beside)
	return nil
}

// fill inserts n events that were delivered a day ago, in parts.
func fill(ctx context.Context, pool *pgxpool.Pool, n int) error {
	const part = 500_000
	begun := time.Now()
	for from := 1; from <= n; from += part {
		to := min(from+part-1, n)
		_, err := timed(ctx, pool, fmt.Sprintf(`
			INSERT INTO boxpair.outbox_events (dispatch_id, shard, digest, topic, key, payload, created_at)
			SELECT gen_random_uuid(), i %% 64, decode(md5(i::text), 'hex'), 'order.placed', 'order-' || i %% 100000,
			    convert_to(repeat('x', 200), 'UTF8'), now() - interval '1 day'
			FROM generate_series(%d, %d) i`, from, to), fmt.Sprintf(`
			INSERT INTO boxpair.outbox_receipts (relay, delivered_at, event_ids)
			SELECT 'relay', now() - interval '1 day' + i * interval '1 ms', array_agg(k ORDER BY k)
			FROM generate_series(%d, %d, %d) i CROSS JOIN LATERAL generate_series(i, i + %d - 1) k GROUP BY i ORDER BY i`,
			from, to, perReceipt, perReceipt))
		if err != nil {
			return err
		}
	}
	_, err := timed(ctx, pool, `VACUUM ANALYZE boxpair.outbox_events`, `VACUUM ANALYZE boxpair.outbox_receipts`, `CHECKPOINT`)
	say("outbox: %d events made in %v", n, time.Since(begun).Round(time.Second))
	return err
}

// commits returns the median duration of a transaction with one event.
func commits(ctx context.Context, out *producer.Outbox[pgx.Tx], d time.Duration) (time.Duration, error) {
	var all []time.Duration
	for begun := time.Now(); time.Since(begun) < d; {
		one := time.Now()
		err := out.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			_, err := w.Write(ctx, producer.Event{Topic: "order.placed", Key: "live", Random: true, Payload: []byte(strconv.Itoa(len(all)))})
			return err
		})
		if err != nil {
			return 0, err
		}
		all = append(all, time.Since(one))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

func progress(n int) func(producer.JanitorReport) {
	next := int64(n / 10)
	return func(r producer.JanitorReport) {
		if r.Events >= next {
			say("outbox: %d of %d removed after %v, longest batch %v", r.Events, n, r.Took.Round(time.Second), r.LongestBatch)
			next += int64(n / 10)
		}
	}
}
