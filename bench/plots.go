package main

import (
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// chart is a plot of throughput.
type chart struct {
	file, title, x string
	log            bool // x axis in powers of ten
	lines          []chartLine
	// sized returns the factor of x in a run of fewer messages; nil if x does not change.
	sized func(scale float64) float64
}

func byMessages(scale float64) float64 { return scale }
func byRetained(scale float64) float64 { return min(1, scale) }

// chartLine is a line of a chart.
type chartLine struct {
	name   string
	points []chartPoint
}

// chartPoint is a variant, as scenario/variant, with its place on the x axis.
type chartPoint struct {
	x  float64
	of string
}

// charts are the charts of full runs; variants without a measurement are left out.
func charts() []chart {
	concurrent := func(name, of string) chartLine {
		return chartLine{name, []chartPoint{{1, of + "-1"}, {8, of + "-8"}, {32, of + "-32"}}}
	}
	return []chart{
		{"backlog.svg", "Relay to a classic queue, by backlog", "events that wait", true, []chartLine{
			{"this relay", []chartPoint{{1e4, "relay/backlog-10k"}, {3e4, "relay/backlog-30k"}, {1e5, "relay/classic"}, {3e5, "relay/backlog-300k"}}},
			{"raw amqp091", []chartPoint{{1e4, "relay/limit-classic"}, {3e5, "relay/limit-classic"}}},
		}, byMessages},
		{"retained.svg", "Relay and enqueue, by retained events", "million delivered events in the log", false, []chartLine{
			{"this relay", []chartPoint{{0, "relay/classic"}, {1, "relay/classic-retained-1m"}, {10, "relay/classic-retained-10m"}}},
			{"Transact, 8 producers", []chartPoint{{0, "enqueue/transact-8"}, {1, "enqueue/transact-8-retained-1m"}, {10, "enqueue/transact-8-retained-10m"}}},
		}, byRetained},
		{"producers.svg", "Enqueue one event per transaction, by producers", "producers", false, []chartLine{
			concurrent("raw, one round trip", "enqueue/limit-raw"), concurrent("Transact", "enqueue/transact"),
			concurrent("Write", "enqueue/write"), concurrent("by hand", "enqueue/limit-statements"),
		}, nil},
		{"in-flight.svg", "Consume, a transaction per message, by messages in flight", "messages in flight", false, []chartLine{
			concurrent("this inbox", "consume/in-flight"),
			{"raw pipelined workers", []chartPoint{{8, "consume/limit-pipelined"}, {32, "consume/limit-pipelined-32"}}},
		}, nil},
	}
}

// plot writes the charts with a line of at least two variants, and returns them.
func (r *report) plot(dir string) (written []chart, err error) {
	for _, c := range charts() {
		p := plot.New()
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text, p.Y.Min = c.title, c.x, "per second", 0
		if c.log {
			p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		}
		p.Legend.Top = false
		drawn := false
		for i, line := range c.lines {
			factor := 1.0
			if c.sized != nil {
				factor = c.sized(r.plan.scale)
			}
			points, variants := r.points(line, factor)
			if len(points) < 2 {
				continue
			}
			if err := addLine(p, line.name, i, points); err != nil {
				return written, err
			}
			drawn = drawn || variants > 1
		}
		if !drawn {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return written, err
		}
		if err := p.Save(16*vg.Centimeter, 9*vg.Centimeter, filepath.Join(dir, c.file)); err != nil {
			return written, err
		}
		written = append(written, c)
	}
	return written, nil
}

// addLine adds the i-th line of a plot, with a legend if it has a name.
func addLine(p *plot.Plot, name string, i int, points plotter.XYs) error {
	l, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	l.Color, marks.Color, marks.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
	l.Width = vg.Points(1.5)
	p.Add(l, marks)
	if name != "" {
		p.Legend.Add(name, l, marks)
	}
	return nil
}

// points returns the measured points of a line and the number of their variants, since a limit may
// be a level.
func (r *report) points(line chartLine, factor float64) (points plotter.XYs, variants int) {
	seen := map[string]bool{}
	for _, p := range line.points {
		if rates := figures(r.results[p.of], rate); len(rates) > 0 {
			points = append(points, plotter.XY{X: p.x * factor, Y: median(rates)})
			seen[p.of] = true
		}
	}
	return points, len(seen)
}
