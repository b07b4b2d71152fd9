package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
)

// budget is the maximal cost of one message. Its figures do not depend on how busy the machine is.
type budget struct {
	// Messages is the number of measured messages.
	Messages int `json:"messages"`
	// Statements, WAL (in bytes, without images of pages) and Allocs are per message. 0 is not
	// checked.
	Statements float64 `json:"statements,omitempty"`
	WAL        float64 `json:"wal_bytes,omitempty"`
	Allocs     float64 `json:"allocs,omitempty"`
}

// steady makes the write-ahead log of a measurement reproducible: only the measured code writes to
// the log, and the log has no images of pages.
var steady = []string{"autovacuum=off", "full_page_writes=off", "fsync=off", "shared_buffers=256MB", "max_wal_size=4GB",
	"wal_level=replica", "checkpoint_timeout=30min"}

// check compares what messages cost with their budgets.
func check(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	path := flags.String("budget", "budget.json", "file of budgets")
	update := flags.Bool("update", false, "write what is measured now, and a little more, as the budgets")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("check takes no argument %q", rest[0])
	}
	budgets, err := readBudgets(*path)
	if err != nil {
		return err
	}
	all := &servers{} // always private servers: other programs would write to the log
	if err := all.start(ctx, steady); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	if *update {
		return updateBudgets(ctx, all, *path, budgets)
	}
	var exceeded []error
	for _, name := range slices.Sorted(maps.Keys(budgets)) {
		if err := budgets[name].check(ctx, all, name, os.Stdout); err != nil {
			exceeded = append(exceeded, err)
		}
	}
	return errors.Join(exceeded...)
}

func readBudgets(path string) (map[string]budget, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var budgets map[string]budget
	if err := json.Unmarshal(text, &budgets); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for name, b := range budgets {
		if _, _, err := find(outcome{of: name}.split()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if b.Messages < 1 {
			return nil, fmt.Errorf("%s: %s: messages must be at least 1", path, name)
		}
	}
	return budgets, nil
}

// measure measures a variant, named scenario/variant, with the budget's number of messages.
func (b budget) measure(ctx context.Context, all *servers, name string) (Result, error) {
	scenarioName, variantName := outcome{of: name}.split()
	_, v, err := find(scenarioName, variantName)
	if err != nil {
		return Result{}, err
	}
	s := &stage{databaseURL: all.databaseURL, amqpURL: all.amqpURL, n: b.Messages, quick: true}
	r, err := s.measure(ctx, scenarioName, v)
	if err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// check measures once, and once more if the budget is exceeded: a timer may have fired.
func (b budget) check(ctx context.Context, all *servers, name string, out io.Writer) error {
	var err error
	for range 2 {
		r, failed := b.measure(ctx, all, name)
		if failed != nil {
			return failed
		}
		var line string
		if line, err = b.compare(name, r); err == nil {
			fmt.Fprintln(out, line)
			return nil
		}
	}
	return err
}

// compare formats the measured figures, and returns an error if they exceed the budget.
func (b budget) compare(name string, r Result) (line string, err error) {
	line = fmt.Sprintf("%-28s", name)
	var exceeded []error
	for _, c := range []struct {
		what   string
		value  *float64
		budget float64
	}{{"statements", &r.Statements, b.Statements}, {"bytes of WAL", r.WAL, b.WAL}, {"allocations", &r.Allocs, b.Allocs}} {
		if c.budget == 0 {
			continue
		}
		if c.value == nil || *c.value > c.budget {
			value := "an unknown number of"
			if c.value != nil {
				value = number(*c.value)
			}
			exceeded = append(exceeded, fmt.Errorf("%s: %s %s per message, more than the budget of %s", name, value, c.what, number(c.budget)))
			continue
		}
		line += fmt.Sprintf("  %s %s of %s", number(*c.value), c.what, number(c.budget))
	}
	return line, errors.Join(exceeded...)
}

// updateBudgets sets each figure that has a budget to a little above its present value.
func updateBudgets(ctx context.Context, all *servers, path string, budgets map[string]budget) error {
	for name, b := range budgets {
		r, err := b.measure(ctx, all, name)
		if err != nil {
			return err
		}
		if b.Statements > 0 {
			b.Statements = math.Ceil(r.Statements*110+2) / 100 // batches differ a little in size
		}
		if b.WAL > 0 && r.WAL != nil {
			b.WAL = math.Ceil(*r.WAL * 1.1)
		}
		if b.Allocs > 0 {
			b.Allocs = math.Ceil(r.Allocs * 1.1)
		}
		budgets[name] = b
	}
	text, err := json.MarshalIndent(budgets, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
