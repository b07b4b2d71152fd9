package operate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// most is the longest time to the first output, from a request, or from the start of a command, less
// the time of an idle command.
const most = 100 * time.Millisecond

// patience is how long a measurement waits for the first output.
const patience = 5 * time.Second

// timing is the times to the first output of one command or page.
type timing struct {
	name  string
	times []time.Duration
}

func (t *timing) median() time.Duration { return slices.Sorted(slices.Values(t.times))[len(t.times)/2] }

// rows finds rows in the data for the commands and pages.
type rows struct{ delivered, pending, deferred, dead, effect, key, request string }

func find(ctx context.Context, pool *pgxpool.Pool) (r rows, err error) {
	const one = `(SELECT dispatch_id::text FROM boxpair.outbox_events WHERE id = (`
	err = pool.QueryRow(ctx, `SELECT `+one+`SELECT max(id) / 2 + 1 FROM boxpair.outbox_events)), `+one+`SELECT max(id) FROM boxpair.outbox_queue)), `+
		one+`SELECT max(id) FROM boxpair.outbox_deferred)), `+one+`SELECT min(id) FROM boxpair.outbox_parked WHERE state = 'dead')),
		(SELECT dispatch_id::text FROM boxpair.inbox_effects WHERE state = 'dead' LIMIT 1), key, correlation_id
		FROM boxpair.outbox_events WHERE id = (SELECT max(id) / 3 FROM boxpair.outbox_events)`).
		Scan(&r.delivered, &r.pending, &r.deferred, &r.dead, &r.effect, &r.key, &r.request)
	return r, err
}

// commands are all commands that read much or little. Commands that change rows get --dry-run. out, in
// and both stand for the databases, and the words of a command are separated by a blank.
func (r *rows) commands() []string {
	of := strings.NewReplacer("DELIVERED", r.delivered, "PENDING", r.pending, "DEFERRED", r.deferred, "DEAD", r.dead, "EFFECT", r.effect, "KEY", r.key, "REQUEST", r.request)
	var list []string
	for line := range strings.SplitSeq(strings.TrimSpace(commands), "\n") {
		list = append(list, of.Replace(line))
	}
	return list
}

const commands = `
id --producer orders --source order-1 --version-number 1
status both
status both --topics
events out
events out --state pending
events out --state deferred
events out --state retrying
events out --state dead
events out --state dead --error broken
events out --state delivered
events out --key KEY
events out --topic order.none
events out --correlation REQUEST
events out --since 3d --until 2d
events out DELIVERED
show both DELIVERED
show both DEAD
show both KEY
show both REQUEST
why both DELIVERED
why both PENDING
why both DEFERRED
why both DEAD
why both KEY
why both REQUEST
tree both DELIVERED
tree both DEAD
dead list out
dead list in
dead list both
dead list out --each
dead list in --each
dead list both --error broken
dead list both --topic order.paid
dead list in --consumer stock/count
dead show both DEAD
dead redrive out --all --dry-run -m test
dead redrive in --all --dry-run -m test
dead redrive both --error broken --dry-run -m test
dead redrive both DEAD --dry-run -m test
dead discard out --all --dry-run -m test
dead discard in --all --dry-run -m test
deferred list out
deferred move out --all --at 2100-01-01T00:00:00Z --dry-run
deferred cancel out --all --dry-run -m test
effects list in
effects show in --id EFFECT
effects redrive in --id EFFECT -m test
replay out --topic order.paid --dry-run
replay out --all --dry-run
verify both --consumer stock/count=order.# --from 1h
verify both --consumer stock/count=order.#
doctor both
janitor out --once --retention 720h
migrate status database
relay out --amqp amqp://127.0.0.1:1
ui both --listen 127.0.0.1:0`

func (r *rows) pages(name string) []string {
	return []string{
		"/", "/events", "/events?state=pending", "/events?state=dead", "/events?state=deferred", "/events?state=delivered",
		"/events?key=" + r.key, "/events?topic=order.none", "/events?correlation=" + r.request,
		"/events/" + name + "/" + r.delivered, "/events/" + name + "/" + r.pending, "/events/" + name + "/" + r.dead,
		"/messages", "/messages?state=dead", "/messages?consumer=stock/count", "/messages/" + r.dead,
		"/dead", "/deferred", "/routes", "/relays", "/consumers", "/effects", "/effects?state=dead", "/pauses",
	}
}

// look times all commands and pages, and prints a table. The error names slow commands and pages.
func look(ctx context.Context, program string, pool *pgxpool.Pool, address string, cfg Config) error {
	r, err := find(ctx, pool)
	if err != nil {
		return err
	}
	none := timing{name: "version"}
	var all []timing
	for range 4 * cfg.Runs { // the mean of an idle command is the base of all times
		if err := none.add(ctx, program, "version"); err != nil {
			return err
		}
	}
	base := none.median()
	databases := strings.NewReplacer(" out", " --outbox "+address, " in", " --inbox "+address, " database", " --database "+address, " both", " --outbox "+address+" --inbox "+address)
	for _, line := range r.commands() {
		if !strings.Contains(line, cfg.Only) {
			continue
		}
		t := timing{name: line}
		for range cfg.Runs + 1 { // the first run fills the caches
			if err := t.add(ctx, program, strings.Fields(databases.Replace(line))...); err != nil {
				return fmt.Errorf("%s: %w", line, err)
			}
		}
		t.times = t.times[1:]
		for i := range t.times {
			t.times[i] = max(0, t.times[i]-base)
		}
		say("%v\t%s", round(t.median()), line)
		all = append(all, t)
	}
	pages, err := serve(ctx, program, address, r.pages(pool.Config().ConnConfig.Database), cfg)
	if err != nil {
		return err
	}
	fmt.Printf("%d events; a command that does nothing takes %v (median)\n", cfg.Events, round(base))
	return report(append(all, pages...))
}

// build builds the command from the sources around this module.
func build(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "boxpair")
	root := "."
	if _, err := os.Stat("cmd/boxpair"); err != nil {
		root = ".."
	}
	if out, err := exec.CommandContext(ctx, "go", "-C", filepath.Join(root, "cmd/boxpair"), "build", "-o", program, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return program, nil
}

// add runs a command to its first output, on either stream, and then ends it.
func (t *timing) add(ctx context.Context, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	begun := time.Now()
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	first := make([]byte, 400)
	n, err := r.Read(first)
	t.times = append(t.times, time.Since(begun))
	if err == nil && strings.Contains(string(first[:n]), "--help") {
		err = errors.New(string(first[:n]))
	}
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		err = nil // the time counts also without output
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, r) }()
	_ = cmd.Wait() // it was interrupted
	return err
}

// serve starts the dashboard and times its pages.
func serve(ctx context.Context, program, address string, pages []string, cfg Config) (all []timing, err error) {
	cmd := exec.CommandContext(ctx, program, "ui", "--listen", "127.0.0.1:0", "--outbox", address, "--inbox", address)
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { _ = cmd.Process.Signal(syscall.SIGINT); _ = cmd.Wait() }()
	lines := bufio.NewReader(log)
	line, err := lines.ReadString('\n')
	if err != nil {
		return nil, err
	}
	site := regexp.MustCompile(`http://127.0.0.1:\d+`).FindString(line)
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	for _, page := range pages {
		if !strings.Contains("page "+page, cfg.Only) {
			continue
		}
		t := timing{name: "page " + page}
		for i := range cfg.Runs + 1 {
			time.Sleep(1100 * time.Millisecond) // the dashboard keeps the state of a database for a second
			took, err := request(ctx, site+page)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", page, err)
			}
			if i > 0 {
				t.times = append(t.times, took)
			}
		}
		say("%v\t%s", round(t.median()), t.name)
		all = append(all, t)
	}
	return all, nil
}

func request(ctx context.Context, url string) (time.Duration, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err
	}
	took := time.Since(begun)
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return took, err
}

func report(all []timing) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "median\tworst\t")
	var slow []string
	for i := range all {
		t := &all[i]
		mark := ""
		if t.median() > most {
			mark = " !"
			slow = append(slow, t.name)
		}
		fmt.Fprintf(table, "%v\t%v\t%s%s\n", round(t.median()), round(slices.Max(t.times)), t.name, mark)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(slow) > 0 {
		return fmt.Errorf("more than %v to the first output: %s", most, strings.Join(slow, "; "))
	}
	return nil
}
