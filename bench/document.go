package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// The figures of a document stand between these two lines.
const (
	figuresBegin = "<!-- figures: written by the suite, do not edit -->"
	figuresEnd   = "<!-- end of figures -->"
)

// readDocument returns a document with a place for figures.
func readDocument(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	_, err = replaceFigures(string(text), "")
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return string(text), nil
}

// replaceFigures replaces the figures in a document.
func replaceFigures(document, figures string) (string, error) {
	head, rest, ok := strings.Cut(document, figuresBegin+"\n")
	if !ok {
		return "", errors.New("the line that begins the figures is missing: " + figuresBegin)
	}
	_, tail, ok := strings.Cut(rest, figuresEnd)
	if !ok {
		return "", errors.New("the line that ends the figures is missing: " + figuresEnd)
	}
	return head + figuresBegin + "\n" + figures + figuresEnd + tail, nil
}

// writeDocument replaces the figures of a document and writes its plots. The tables of all variants
// and the profiles go into the directory for results.
func (r *report) writeDocument(path string, list outcomes) error {
	document, err := readDocument(path)
	if err != nil {
		return err
	}
	dir := strings.TrimSuffix(path, filepath.Ext(path))
	images, err := r.plot(dir)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString("\n")
	r.circumstances(&b)
	b.WriteString("\n### Targets\n\n")
	targetTable(&b, list)
	b.WriteString("\n")
	for _, image := range images {
		fmt.Fprintf(&b, "![%s](%s/%s)\n\n", image.title, filepath.Base(dir), image.file)
	}
	document, err = replaceFigures(document, b.String())
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path, []byte(document), 0o644), r.writeResults())
}

// Files in the directory for results.
const (
	variantsFile = "variants.md"
	profilesFile = "profiles.md"
)

// writeResults writes the parts that are too long for the document. A run without profiles keeps
// the profiles of an earlier run, which name their run.
func (r *report) writeResults() error {
	if err := os.MkdirAll(r.plan.results, 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString(variantsHead)
	r.circumstances(&b)
	b.WriteString("\n" + legend + "\n\n")
	r.table(&b)
	err := os.WriteFile(filepath.Join(r.plan.results, variantsFile), trimmed(&b), 0o644)
	if err != nil || len(r.profiled) == 0 {
		return err
	}
	b.Reset()
	b.WriteString(profilesHead)
	r.circumstances(&b)
	b.WriteString("\n")
	for _, name := range r.profiled {
		fmt.Fprintf(&b, "## %s\n\n```\n%s```\n\n", name, r.top(name))
	}
	return os.WriteFile(filepath.Join(r.plan.results, profilesFile), trimmed(&b), 0o644)
}

// trimmed returns the text with one line break at its end.
func trimmed(b *bytes.Buffer) []byte { return append(bytes.TrimRight(b.Bytes(), "\n"), '\n') }

// circumstances lists the machine, the versions and the kind of the run.
func (r *report) circumstances(b *bytes.Buffer) {
	kind := "full run"
	if r.plan.quick {
		kind = "quick run (-quick)"
	}
	if r.plan.scale != 1 {
		kind += fmt.Sprintf(" with %g of its messages (-scale)", r.plan.scale)
	}
	for _, line := range append(slices.Clone(r.machine), fmt.Sprintf("%s of %d rounds, %s", kind, r.plan.rounds, r.effort())) {
		b.WriteString(item(line))
	}
}

// item is a line of a list, wrapped at 100 columns.
func item(text string) string {
	const columns = 100
	line, wrapped := "-", ""
	for _, word := range strings.Fields(text) {
		if len([]rune(line+" "+word)) > columns {
			line, wrapped = " ", wrapped+line+"\n"
		}
		line += " " + word
	}
	return wrapped + line + "\n"
}

const (
	written = "Written by `make bench-suite`; do not edit. [docs/performance.md](../../docs/performance.md) says\n" +
		"how it is measured.\n\n"

	variantsHead = "# All variants\n\n" + written

	profilesHead = "# CPU profiles\n\n" + written +
		"Each variant that missed its target was measured once more, with a profile of the client.\n" +
		"`bench suite -profile` writes the profiles; `go tool pprof -top -cum` shows them.\n\n"
)

const legend = `Medians over the rounds; the ratio is the median of the ratios within each round. CPU is in seconds
per 100,000 messages; WAL, statements, round trips and allocations are per message; "others" is the
part of the machine that something else used.`

// top returns the functions in which a profile spends its time: in this library, in drivers, in the
// system and in the collector, with their callees.
func (r *report) top(name string) string {
	out, err := exec.Command("go", "tool", "pprof", "-top", "-cum", "-nodecount=25",
		"-show=boxpair/boxpair/|amqp091-go|pgx/v5|linux.Syscall6|gcBgMarkWorker$|runtime.mallocgc$",
		filepath.Join(r.plan.profile, name+".pprof")).Output()
	if err != nil {
		return "not readable: " + err.Error() + "\n"
	}
	_, shown, _ := strings.Cut(string(out), "Duration:") // file names stand before
	return "Duration:" + shown
}

// describe returns the machine and the versions.
func describe(ctx context.Context, all *servers) []string {
	lines := []string{fmt.Sprintf("%d CPUs (%s), %s, %s/%s", runtime.NumCPU(), field("/proc/cpuinfo", "model name"),
		field("/proc/meminfo", "MemTotal"), runtime.GOOS, runtime.GOARCH)}
	if d, err := syncTime(); err == nil {
		lines = append(lines, fmt.Sprintf("a synchronous write of 8 kB takes %d µs", d.Microseconds()))
	}
	lines = append(lines, fmt.Sprintf("%s, PostgreSQL %s, RabbitMQ %s", runtime.Version(), postgresVersion(ctx, all.databaseURL), rabbitVersion(all.amqpURL)))
	if info, ok := debug.ReadBuildInfo(); ok {
		if commit := revision(info); commit != "" {
			lines = append(lines, "commit "+commit)
		}
		var modules []string
		for _, m := range info.Deps {
			if slices.Contains([]string{"github.com/jackc/pgx/v5", "github.com/rabbitmq/amqp091-go", "github.com/ThreeDotsLabs/watermill",
				"github.com/ThreeDotsLabs/watermill-amqp/v2", "github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/riverqueue/river"}, m.Path) {
				modules = append(modules, m.Path+" "+m.Version)
			}
		}
		lines = append(lines, strings.Join(modules, ", "))
	}
	return lines
}

// revision returns the commit of the program's source; unknown with "go run".
func revision(info *debug.BuildInfo) (commit string) {
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = ", with changes"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + changed
}

// field returns the value of a name in a file of /proc.
func field(file, name string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown " + name
}

// syncTime returns the time to sync a small write to the disk.
func syncTime() (_ time.Duration, err error) {
	f, err := os.CreateTemp("", "boxpair-bench-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 8192)
	const times = 100
	begun := time.Now()
	for range times {
		if _, err := f.WriteAt(block, 0); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	return time.Since(begun) / times, nil
}

func postgresVersion(ctx context.Context, databaseURL string) string {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return "unknown"
	}
	defer conn.Close(ctx)
	return conn.PgConn().ParameterStatus("server_version")
}

func rabbitVersion(url string) string {
	conn, err := amqp.Dial(url)
	if err != nil {
		return "unknown"
	}
	defer conn.Close()
	return fmt.Sprint(conn.Properties["version"])
}
