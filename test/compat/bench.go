package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// benchPath is the document with the figures of the defaults, by release.
const benchPath = "docs/performance/servers.md"

// defaults are the measured variants: what is on without a choice, and what the broker's version
// matters for most.
const defaults = "^(enqueue/readme-8|relay/(limit-)?(classic|quorum)(-headers)?|consume/(default|group-exec)|chain/chain-default)$"

// figures are the targets of a release, in the order of the benchmark.
type figures struct {
	versions versions
	names    []string
	values   map[string]float64 // by name
}

// bench measures the defaults on the servers of a release.
func bench(ctx context.Context, places places, root, binaries string, r release, rounds int) (figures, error) {
	has, err := installed(ctx, places, root, r)
	if err != nil {
		return figures{}, err
	}
	fmt.Printf("%s: PostgreSQL %s, RabbitMQ %s\n", r.title, has.postgres, has.rabbitmq)
	logs := filepath.Join(binaries, "logs", r.name)
	if err := os.MkdirAll(logs, 0o750); err != nil {
		return figures{}, err
	}
	cmd := places.command(ctx, r, filepath.Join(root, "bench"), filepath.Join(binaries, "bench"), "suite", "-quick", "-rounds", strconv.Itoa(rounds), "-only", defaults)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := interruptible(cmd).Output()
	if err := errors.Join(err, os.WriteFile(filepath.Join(logs, "bench.log"), out, 0o600)); err != nil {
		return figures{}, fmt.Errorf("bench suite: %w\n%s", err, complaints.Bytes())
	}
	names, values, err := parseFigures(out)
	return figures{has, names, values}, err
}

// parseFigures reads the last line of a suite: an object with an object for each target.
func parseFigures(out []byte) (names []string, values map[string]float64, err error) {
	out = bytes.TrimSpace(out)
	d := json.NewDecoder(bytes.NewReader(out[bytes.LastIndexByte(out, '\n')+1:]))
	if _, err := d.Token(); err != nil {
		return nil, nil, fmt.Errorf("the suite's last line: %w", err)
	}
	values = make(map[string]float64)
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, nil, fmt.Errorf("the suite's last line: %w", err)
		}
		var target struct{ Value *float64 }
		if err := d.Decode(&target); err != nil {
			return nil, nil, fmt.Errorf("the suite's last line: %w", err)
		}
		text := fmt.Sprint(name)
		names = append(names, text)
		if target.Value != nil {
			values[text] = *target.Value
		}
	}
	return names, values, nil
}

// benchTable returns a table with a column for each release.
func benchTable(all []figures) string {
	var b strings.Builder
	b.WriteString("| target |")
	for _, f := range all {
		fmt.Fprintf(&b, " PostgreSQL %s, RabbitMQ %s |", f.versions.postgres, f.versions.rabbitmq)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(all)) + "\n")
	for _, name := range all[0].names {
		if !slices.ContainsFunc(all, func(f figures) bool { _, measured := f.values[name]; return measured }) {
			continue
		}
		fmt.Fprintf(&b, "| %s |", name)
		for _, f := range all {
			cell := "not measured"
			if v, ok := f.values[name]; ok {
				cell = strconv.FormatFloat(v, 'g', 3, 64)
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// benchAll measures on the releases and writes the table.
func benchAll(ctx context.Context, places places, root string, releases []release, rounds int) error {
	binaries := filepath.Join(root, "bin", "compat")
	cmd := exec.CommandContext(ctx, "go", "-C", "bench", "build", "-buildvcs=false", "-o", filepath.Join(binaries, "bench"), ".")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	var all []figures
	var failed error
	for _, r := range releases {
		err := places.make(ctx, r)
		if err == nil {
			var f figures
			if f, err = bench(ctx, places, root, binaries, r, rounds); err == nil {
				all = append(all, f)
			}
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s (%s) was not measured: %w", r.title, r.name, err))
		}
	}
	if len(all) == 0 {
		return cmp.Or(failed, errors.New("no release was measured"))
	}
	return errors.Join(failed, replace(filepath.Join(root, benchPath), "<!-- servers: written by make compat-bench, do not edit -->\n", "<!-- end of servers -->\n",
		func(string) string { return benchTable(all) }))
}
