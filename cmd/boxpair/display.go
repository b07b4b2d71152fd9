package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// form is the form of a command's output.
type form struct{ format string }

func (f *form) define(s *settings) {
	f.format = "text"
	s.choice(&f.format, "output", "FORMAT", "text, or json for one JSON object. Defaults to text.", "text", "json")
}

func (f *form) json() bool { return f.format == "json" }

// encode prints one JSON object.
func (f *form) encode(out io.Writer, object any) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(object)
}

// result prints the result of a command: a text of whole lines, or one JSON object.
func (f *form) result(p *process, text string, object any) error {
	if f.json() {
		return f.encode(p.stdout, object)
	}
	_, err := io.WriteString(p.stdout, text)
	return err
}

// display holds the settings of a command's output.
type display struct {
	form
	color string
	wide  bool
}

func (d *display) define(s *settings) {
	d.color = "auto"
	d.form.define(s)
	s.on(&d.wide, "wide", "print all columns, with whole texts, IDs and times, however wide the terminal is.")
	s.choice(&d.color, "color", "WHEN", "auto, always or never. auto colors a terminal, unless NO_COLOR is set. Defaults to auto.", "auto", "always", "never")
}

// colored tells whether p's output has colors.
func (d *display) colored(p *process) bool {
	return d.color == "always" || d.color == "auto" && p.getenv("NO_COLOR") == "" && p.escapes()
}

// escapes tells whether p's output is a terminal that knows escape sequences.
func (p *process) escapes() bool { return p.width > 0 && p.getenv("TERM") != "dumb" }

// narrowWidth is the width of output that is no terminal's.
const narrowWidth = 80

func (d *display) width(p *process) int {
	if p.width > 0 {
		return p.width
	}
	return narrowWidth
}

// fact prints a name and a value in lines of their own, unless the value is empty or 0.
func (d *display) fact(p *process, name string, value any) {
	if text := plain(fmt.Sprint(value)); text != "" && text != "0" && text != "-" {
		d.wrap(p, p.stdout, fmt.Sprintf("  %-15s ", name), fmt.Sprintf("  %-15s ", ""), text)
	}
}

// fate prints the state of a parked event or message, with attempts and operators' changes.
func (d *display) fate(p *process, next *time.Time, attempts int, lastError, reason string, all []history) {
	if next != nil {
		d.fact(p, "next attempt", instant(*next, ""))
	}
	d.fact(p, "attempts", attempts)
	d.fact(p, "last error", lastError)
	d.fact(p, "reason", reason)
	for i := range all {
		h := &all[i]
		d.fact(p, h.Outcome, strings.Join(slices.DeleteFunc([]string{instant(h.At, ""), h.Relay, h.Error}, func(s string) bool { return s == "" }), " "))
	}
}

// column is a column of a grid.
type column struct {
	head string
	// wide columns are printed with --wide only.
	wide bool
	// flexible columns share the space that other columns leave; longer texts are cut off.
	flexible bool
	// number columns are aligned right.
	number bool
}

// grid is a table as text.
type grid struct {
	display *display
	process *process
	columns []column
	rows    [][]string
}

func (d *display) grid(p *process, columns ...column) *grid {
	return &grid{display: d, process: p, columns: columns}
}

// add adds a row with a cell for each column. Cells are printed without control characters.
func (g *grid) add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = plain(fmt.Sprint(cell))
	}
	g.rows = append(g.rows, row)
}

// gap is the space between two columns, and leastFlexible the least width of a flexible column.
const gap, leastFlexible = 2, 8

// print prints the head and the rows, at most as wide as the terminal.
func (g *grid) print(out io.Writer) error {
	var shown []int
	for i, c := range g.columns {
		if !c.wide || g.display.wide {
			shown = append(shown, i)
		}
	}
	widths := g.widths(shown)
	w := table.NewWriter()
	w.SetStyle(table.Style{Box: table.BoxStyle{PaddingRight: strings.Repeat(" ", gap)}, Format: table.FormatOptions{Header: text.FormatDefault}})
	configs := make([]table.ColumnConfig, len(shown))
	head := make(table.Row, len(shown))
	for k, i := range shown {
		head[k] = g.columns[i].head
		configs[k] = table.ColumnConfig{Number: k + 1, WidthMax: widths[k], WidthMaxEnforcer: cut, Align: text.AlignLeft}
		if g.columns[i].number {
			configs[k].Align, configs[k].AlignHeader = text.AlignRight, text.AlignRight
		}
		if g.display.colored(g.process) && g.columns[i].head == "state" {
			configs[k].Transformer = paint
		}
	}
	w.SetColumnConfigs(configs)
	w.AppendHeader(head)
	for _, cells := range g.rows {
		row := make(table.Row, len(shown))
		for k, i := range shown {
			row[k] = cells[i]
		}
		w.AppendRow(row)
	}
	for line := range strings.Lines(w.Render()) {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// widths returns the greatest width of each shown column.
func (g *grid) widths(shown []int) []int {
	widths := make([]int, len(shown))
	used, flexible := 0, 0
	for k, i := range shown {
		widths[k] = text.StringWidth(g.columns[i].head)
		for _, row := range g.rows {
			widths[k] = max(widths[k], text.StringWidth(row[i]))
		}
		used += widths[k] + gap
		if g.columns[i].flexible {
			flexible++
		}
	}
	if g.display.wide {
		return widths
	}
	// The widest flexible column gives way first.
	for over := used - gap - g.display.width(g.process); over > 0 && flexible > 0; over-- {
		widest := -1
		for k, i := range shown {
			if g.columns[i].flexible && widths[k] > leastFlexible && (widest < 0 || widths[k] >= widths[widest]) {
				widest = k
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return widths
}

// cut shortens a text to a width, with an ellipsis.
func cut(s string, width int) string { return text.Snip(s, width, "…") }

// paint colors the name of a state. Color.Sprint would leave the name as it is under NO_COLOR, even
// with --color always.
func paint(value any) string {
	name := fmt.Sprint(value)
	var c text.Color
	switch first, _, _ := strings.Cut(name, " "); first {
	case "dead", "unhealthy", "altered", "too_old", "uncertain", "refusing", "loses":
		c = text.FgRed
	case "retrying", "following", "degraded", "unavailable", "paused", "stalls":
		c = text.FgYellow
	case "healthy", "delivered", "applied", "done", "working":
		c = text.FgGreen
	default:
		return name
	}
	return c.EscapeSeq() + name + text.EscapeReset
}

// when prints a time: with --wide as a date, otherwise as an age.
func (d *display) when(t time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case d.wide:
		return instant(t, "-")
	}
	if ahead := time.Until(t); ahead > 0 {
		return "in " + short(ahead)
	}
	return short(time.Since(t))
}

const day = 24 * time.Hour

// short prints a duration in one unit, or two where one is coarse: 12s, 3m, 2h5m, 4d.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < day:
		if m := int(d.Minutes()) % 60; m > 0 && d < 10*time.Hour {
			return fmt.Sprintf("%dh%dm", int(d.Hours()), m)
		}
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d/day))
}

// id prints a dispatch ID: with --wide whole, otherwise the first eight digits, which every command
// takes for the whole ID.
func (d *display) id(id fmt.Stringer) string {
	if d.wide {
		return id.String()
	}
	return id.String()[:8]
}
