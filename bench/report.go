package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report holds the results of a suite.
type report struct {
	plan     plan
	machine  []string
	begun    time.Time
	took     time.Duration
	again    time.Duration       // spent on measuring again
	results  map[string][]Result // by scenario/variant
	profiled []string            // names of profiles
}

// table writes a Markdown table for each scenario.
func (r *report) table(w io.Writer) {
	for _, s := range scenarios() {
		measured := false
		for _, v := range s.variants {
			results := r.results[s.name+"/"+v.name]
			if len(results) == 0 {
				continue
			}
			if !measured {
				fmt.Fprintf(w, "### %s\n\n%s.\n\n", s.name, capital(s.about))
				fmt.Fprintf(w, "| variant | %s | %s/s | min–max | of its limit | Go CPU | PostgreSQL CPU | RabbitMQ CPU | peak MB | WAL B | statements | round trips | allocations | others | |\n", s.unit, s.unit)
				fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
				measured = true
			}
			fmt.Fprintln(w, r.row(s, v, results))
		}
		if measured {
			fmt.Fprintln(w)
		}
	}
}

// row formats one variant: medians over the rounds.
func (r *report) row(s scenario, v variant, results []Result) string {
	rates := figures(results, rate)
	ratio := ""
	if v.limit != "" {
		if values := ratios(results, r.results[s.name+"/"+v.limit], rate); len(values) > 0 {
			ratio = number(median(values)) + " of `" + v.limit + "`"
		}
	}
	column := func(figure func(Result) *float64) string {
		values := figures(results, figure)
		if len(values) == 0 {
			return "–"
		}
		return number(median(values))
	}
	cells := []string{
		"`" + v.name + "`: " + v.about, column(func(r Result) *float64 {
			n := float64(r.Messages)
			return &n
		}), number(median(rates)),
		number(slices.Min(rates)) + "–" + number(slices.Max(rates)), ratio,
		column(func(r Result) *float64 { return &r.ClientCPU }),
		column(func(r Result) *float64 { return r.PostgresCPU }),
		column(func(r Result) *float64 { return r.RabbitMQCPU }),
		column(func(r Result) *float64 {
			if r.PeakRSS == nil {
				return nil
			}
			mb := *r.PeakRSS / 1e6
			return &mb
		}),
		column(func(r Result) *float64 { return r.WAL }),
		column(func(r Result) *float64 { return &r.Statements }),
		column(func(r Result) *float64 { return &r.RoundTrips }),
		column(func(r Result) *float64 { return &r.Allocs }),
		column(func(r Result) *float64 { return r.OtherLoad }),
		extras(results),
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// effort returns how the time of the run was spent.
func (r *report) effort() string {
	var measured, processes float64
	steps := map[string]float64{}
	for _, results := range r.results {
		for _, result := range results {
			measured, processes = measured+result.Seconds, processes+result.Took
			for name, seconds := range result.Steps {
				steps[name] += seconds
			}
		}
	}
	var list []string
	for _, name := range slices.SortedFunc(maps.Keys(steps), func(a, b string) int { return cmp.Compare(steps[b], steps[a]) }) {
		if steps[name] >= 0.5 {
			list = append(list, fmt.Sprintf("%s %.0f s", name, steps[name]))
		}
	}
	return fmt.Sprintf("%s: %.0f s measured, of %.0f s in processes that measure; %s", r.took.Round(time.Second), measured, processes,
		strings.Join(list, ", "))
}

// extras formats the medians of the figures that only one scenario has.
func extras(results []Result) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(results[0].Extra)) {
		list = append(list, name+" "+number(median(figures(results, extra(name)))))
	}
	return strings.Join(list, ", ")
}

// targetTable writes the outcomes of the targets.
func targetTable(w io.Writer, list outcomes) {
	fmt.Fprint(w, "| target | wanted | measured | |\n|---|---|---|---|\n")
	for _, o := range list {
		wanted, measured, met := "reported", "not measured", "missed"
		if o.Target != nil {
			wanted = "≥ " + number(*o.Target)
			if o.atMost {
				wanted = "≤ " + number(*o.Target)
			}
		}
		if o.Value != nil {
			measured = number(*o.Value)
		}
		if o.Met {
			met = "met"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", o.Name, wanted, measured, met)
	}
}

// number formats three digits, with commas between thousands.
func number(v float64) string {
	v = significant(v)
	if v < 1000 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	text := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
