package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/boxpair/boxpair/producer"
)

// growing configures a measurement of throughput and then of latency, on the defaults and on a classic
// queue. Zero is the default of a field.
type growing struct {
	keys      int // of all events; 0: a key each
	topics    int // of one queue; defaults to 1
	payload   int // bytes; defaults to 512
	retained  int // delivered events in the log
	dead      int // events
	parked    int // events that wait for the next attempt of their key, ten to a key
	processes int // relays of their own; 0: one in this process
}

// axis is what grows.
type axis struct {
	name, title string
	points      []int
	at          func(n int) func(ctx context.Context, s *stage) error
}

func axes() []axis {
	grow := func(at func(n int) growing) func(int) func(context.Context, *stage) error {
		return func(n int) func(context.Context, *stage) error { return at(n).measure }
	}
	return []axis{
		{"keys", "keys", []int{1, 10, 100, 1000, 10_000}, grow(func(n int) growing { return growing{keys: n} })},
		{"topics", "topics of one queue", []int{1, 10, 100, 1000, 10_000}, grow(func(n int) growing { return growing{topics: n} })},
		{"payload", "bytes of payload", []int{64, 512, 4096, 32_768}, grow(func(n int) growing { return growing{payload: n} })},
		{"relays", "relay processes", []int{1, 4, 16, 64}, grow(func(n int) growing { return growing{processes: n} })},
		{"consumers", "consumers of one topic, a partition each", []int{1, 2, 4, 8, 16}, func(n int) func(context.Context, *stage) error {
			return sharing{processes: n, partitions: n, keys: 1000, wait: 25 * time.Millisecond}.measure
		}},
		{"backlog", "events of 1,000 Zipf keys", []int{100_000, 1_000_000, 10_000_000}, backlogged},
		{"retained", "delivered events in the log", []int{0, 10_000, 100_000, 1_000_000}, grow(func(n int) growing { return growing{retained: n} })},
		{"dead", "dead events", []int{0, 1000, 10_000, 100_000}, grow(func(n int) growing { return growing{dead: n} })},
		{"parked", "events that wait for the next attempt of their key", []int{0, 1000, 10_000, 100_000}, grow(func(n int) growing { return growing{parked: n} })},
	}
}

// growthScenario is measured by the command growth only.
func growthScenario() scenario {
	s := scenario{
		name: "growth", unit: "events", apart: true,
		about: "the default relay with a backlog, then 200 transactions a second, while one thing grows",
	}
	for _, a := range axes() {
		for _, n := range a.points {
			size := 20_000
			switch {
			case a.name == "payload" && n > 10_000 || a.name == "relays":
				size = 4000
			case a.name == "consumers": // each measures groups first, for a second
				size = 2000 * max(2, n)
			}
			s.variants = append(s.variants, variant{fmt.Sprint(a.name, "-", n), fmt.Sprint(n, " ", a.title), "", size, 0, a.at(n)})
		}
	}
	return s
}

// clockedEvents is how many events the latency is measured of.
const clockedEvents = 1000

func (g growing) measure(ctx context.Context, s *stage) error {
	g.topics = max(1, g.topics)
	if g.payload == 0 {
		g.payload = len(payload)
	}
	store, pool, schema, err := relaying{retained: g.retained}.store(ctx, s)
	if err != nil {
		return err
	}
	outbox, q, err := s.outbox(store)
	if err != nil {
		return err
	}
	if err := errors.Join(s.parkedEvents(ctx, pool, g.dead, g.parked), s.warm(ctx, pool, 12)); err != nil {
		return err
	}
	fill := func() error { return s.fill(ctx, outbox, g.event) }
	if g.processes > 0 {
		err = g.sendByProcesses(ctx, s, pool, schema, q, fill)
	} else if err = fill(); err == nil {
		err = s.sendInBackground(ctx, outbox, q, func() (int, error) { return s.n, untilEmpty(ctx, pool, "outbox_queue") })
	}
	if err != nil {
		return err
	}
	if _, err := q.ch.QueuePurge(q.names[0], false); err != nil {
		return err
	}
	watch := newStopwatch(clockedEvents)
	if err := q.each(q.names[0], watch.see); err != nil {
		return err
	}
	s.background(ctx, func(ctx context.Context) { _ = outbox.Run(ctx) })
	defer s.spend("latency")()
	if err := pause(ctx, 4*time.Second); err != nil { // relays have shared the shards
		return err
	}
	base := time.Now().UnixNano()
	err = clocked(ctx, watch, func(ctx context.Context, i int) error {
		return outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			e := g.event(i)
			e.Version, e.Payload = base+int64(i), sizedBody(i, g.payload)
			_, err := w.Write(ctx, e)
			return err
		})
	})
	s.latencies(watch)
	return err
}

// event returns the event with a number.
func (g growing) event(i int) producer.Event {
	key := i
	if g.keys > 0 {
		key %= g.keys
	}
	return event(topic(i, g.topics), fmt.Sprint("key-", key), "order", 0, bytes.Repeat([]byte{'x'}, g.payload))
}

// sendInBackground measures how long a relay of this process takes until a condition holds. The relay goes
// on until the stage is closed.
func (s *stage) sendInBackground(ctx context.Context, outbox *producer.Outbox[pgx.Tx], q *queues, until func() (int, error)) error {
	r, err := s.relay(ctx, outbox, q, headers)
	if err != nil {
		return err
	}
	return s.timed(ctx, func() (int, error) {
		s.background(ctx, func(ctx context.Context) { _ = r.Run(ctx) })
		return until()
	})
}

// sendByProcesses measures how long relay processes that have shared the shards take for new events. Memory
// is that of the largest.
func (g growing) sendByProcesses(ctx context.Context, s *stage, pool *pgxpool.Pool, schema string, q *queues, fill func() error) error {
	relays, err := s.relayProcesses(ctx, schema, q, headers, g.processes)
	if err == nil {
		err = begin(relays)
	}
	done := s.spend("sharing")
	for owners := 0; owners < g.processes && err == nil; {
		err = pool.QueryRow(ctx, `SELECT count(DISTINCT owner) FROM outbox_shards WHERE lease_until > now()`).Scan(&owners)
		err = errors.Join(err, pause(ctx, 100*time.Millisecond))
	}
	done()
	if err != nil {
		return err
	}
	err = s.timed(ctx, func() (int, error) {
		return s.n, errors.Join(fill(), untilEmpty(ctx, pool, "outbox_queue"))
	})
	if err != nil {
		return err
	}
	s.result.PeakRSS = nil
	for _, h := range relays {
		if peak := peakRSS(fmt.Sprint(h.cmd.Process.Pid)); peak != nil && (s.result.PeakRSS == nil || *peak > *s.result.PeakRSS) {
			s.result.PeakRSS = peak
		}
	}
	return nil
}

// backlogged measures the first events of a backlog of n events in 1,000 keys by Zipf's law.
func backlogged(n int) func(ctx context.Context, s *stage) error {
	return func(ctx context.Context, s *stage) error {
		store, pool, _, err := relaying{}.store(ctx, s)
		if err != nil {
			return err
		}
		done := s.spend("backlog")
		err = fillLog(ctx, pool, n, "floor(power(1000, (hashint4(i) & 65535) / 65536.0))::int", `INSERT INTO outbox_queue (shard, id) SELECT shard, id FROM outbox_events ORDER BY id`)
		done()
		if err != nil {
			return err
		}
		outbox, q, err := s.outbox(store)
		if err != nil {
			return err
		}
		return s.sendInBackground(ctx, outbox, q, func() (int, error) { return q.await(ctx, s.n) })
	}
}

// await waits until a queue holds n messages, and returns how many it holds.
func (q *queues) await(ctx context.Context, n int) (int, error) {
	for {
		state, err := q.ch.QueueDeclarePassive(q.names[0], true, false, false, false, nil)
		if err != nil || state.Messages >= n {
			return state.Messages, err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// parkedEvents writes events that are dead, and events that wait for the next attempt of their key, which
// is too far away for this measurement.
func (s *stage) parkedEvents(ctx context.Context, pool *pgxpool.Pool, dead, waiting int) error {
	defer s.spend("parked")()
	_, err := pool.Exec(ctx, `WITH written AS (
			INSERT INTO outbox_events (dispatch_id, digest, shard, topic, key, payload)
			SELECT gen_random_uuid(), decode(repeat('00', 16), 'hex'), n / 10 % 64, 'topic-0', 'parked-' || n / 10, '' FROM generate_series(1, $1::int + $2::int) n
			RETURNING id, shard, key)
		INSERT INTO outbox_parked (id, shard, key, state, attempts, next_attempt_at, last_error)
		SELECT id, shard, key, CASE WHEN $1 > 0 THEN 'dead' WHEN first THEN 'retrying' ELSE 'following' END, 1,
			CASE WHEN $1 = 0 AND first THEN now() + interval '5 minutes' END, 'refused'
		FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY id) = 1 AS first FROM written) w`, dead, waiting)
	return err
}

// growth measures what grows, draws a picture for each axis and writes a table.
func growth(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	p := plan{apart: true, scale: 1, results: "results"}
	flags.IntVar(&p.rounds, "rounds", 1, "interleaved rounds; medians are taken over them")
	only := flags.String("only", "", "only variants whose name matches this regular expression")
	dir := flags.String("dir", "../docs/performance", "directory for the pictures")
	rest, err := parse(flags, args)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("growth takes no argument %q", rest[0])
	}
	if err == nil && p.rounds < 1 {
		err = errors.New("-rounds: must be at least 1")
	}
	if err == nil {
		p.only, err = regexp.Compile(*only)
	}
	if err != nil {
		return err
	}
	return p.run(ctx, func(_ *servers, r *report) (failed []error) {
		for _, a := range axes() {
			failed = append(failed, r.drawGrowth(a, filepath.Join(*dir, "growth-"+a.name+".svg")))
		}
		return append(failed, r.writeGrowth(filepath.Join(p.results, "growth.md"), *only == ""))
	})
}

// writeGrowth writes the table of a whole run, or replaces in it the rows of what was measured again.
func (r *report) writeGrowth(path string, whole bool) error {
	var b bytes.Buffer
	if !whole {
		r.table(&b)
		table, err := os.ReadFile(path)
		if err == nil {
			table, err = replaceRows(table, b.Bytes())
		}
		if err != nil {
			return err
		}
		return os.WriteFile(path, table, 0o644)
	}
	b.WriteString("# Growth\n\nWritten by `go run . growth`; `-only` replaces rows.\n\n")
	r.circumstances(&b)
	b.WriteString("\n" + legend + "\n\n")
	r.table(&b)
	return os.WriteFile(path, trimmed(&b), 0o644)
}

// replaceRows replaces the rows of a table by those of the same variants.
func replaceRows(table, by []byte) ([]byte, error) {
	for row := range bytes.Lines(by) {
		name := variantCell.Find(row)
		if name == nil {
			continue
		}
		at := bytes.Index(table, name)
		if at < 0 {
			return nil, fmt.Errorf("the table has no row %s, measure all", name)
		}
		end := at + bytes.IndexByte(table[at:], '\n') + 1
		table = slices.Concat(table[:at], row, table[end:])
	}
	return table, nil
}

// variantCell is how the row of a variant begins.
var variantCell = regexp.MustCompile("^\\| `[^`]+`: ")

// drawGrowth draws throughput, latency and memory along an axis, side by side.
func (r *report) drawGrowth(a axis, path string) error {
	rates, latency, memory := plot.New(), plot.New(), plot.New()
	panels := []*plot.Plot{rates, latency, memory}
	rates.Title.Text, latency.Title.Text, memory.Title.Text = "events a second", "commit to received, ms", "memory, MB"
	latency.Legend.Top = true
	lines := []struct {
		panel  *plot.Plot
		name   string
		figure func(Result) *float64
		divide float64
	}{
		{rates, "", rate, 1}, {latency, "p50", extra("p50_ms"), 1}, {latency, "p99", extra("p99_ms"), 1},
		{memory, "", func(r Result) *float64 { return r.PeakRSS }, 1e6},
	}
	labels := make([]string, len(a.points))
	for i, n := range a.points {
		labels[i] = short(n)
	}
	drawn := map[*plot.Plot]bool{}
	for k, line := range lines {
		var points plotter.XYs
		for i, n := range a.points {
			if values := figures(r.results[fmt.Sprint("growth/", a.name, "-", n)], line.figure); len(values) > 0 {
				points = append(points, plotter.XY{X: float64(i), Y: median(values) / line.divide})
			}
		}
		if len(points) < 2 {
			continue // not measured
		}
		if err := addLine(line.panel, line.name, k, points); err != nil {
			return err
		}
		drawn[line.panel] = true
	}
	panels = slices.DeleteFunc(panels, func(p *plot.Plot) bool { return !drawn[p] })
	if len(panels) == 0 {
		return nil
	}
	for _, p := range panels {
		p.X.Label.Text, p.Y.Min, p.Y.Max = a.title, 0, 1.25*p.Y.Max // room for the legend
		p.NominalX(labels...)
	}
	img := vgsvg.New(vg.Length(len(panels))*8*vg.Centimeter, 7*vg.Centimeter)
	tiles := draw.Tiles{Rows: 1, Cols: len(panels), PadX: vg.Centimeter / 2, PadRight: vg.Centimeter / 2, PadTop: vg.Centimeter / 4}
	for i, c := range plot.Align([][]*plot.Plot{panels}, tiles, draw.New(img))[0] {
		panels[i].Draw(c)
	}
	var b bytes.Buffer
	if _, err := img.WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// short writes 10000 as 10k.
func short(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return strconv.Itoa(n/1_000_000) + "M"
	case n >= 1000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + "k"
	}
	return strconv.Itoa(n)
}
