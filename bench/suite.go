package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// plan holds the settings of a suite.
type plan struct {
	quick                 bool
	apart                 bool // of the scenarios that are no part of the suite
	rounds                int
	scale                 float64
	only                  *regexp.Regexp
	doc, results, profile string
}

func (p *plan) parse(args []string) error {
	flags := flag.NewFlagSet("suite", flag.ContinueOnError)
	flags.BoolVar(&p.quick, "quick", false, "what the targets need, with fewer messages: some ten minutes")
	flags.IntVar(&p.rounds, "rounds", 3, "interleaved rounds; medians are taken over them")
	flags.Float64Var(&p.scale, "scale", 1, "a part of the messages, for a shorter run, or a multiple of them")
	only := flags.String("only", "", "only variants whose scenario/variant matches this regular expression, and their limits")
	flags.StringVar(&p.doc, "doc", "", "Markdown file whose figures are replaced; plots go into a directory named like it")
	flags.StringVar(&p.results, "results", "results", "directory for the tables of all variants and the profiles as text, with -doc")
	flags.StringVar(&p.profile, "profile", "", "directory for CPU profiles of the variants that miss a target")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("suite takes no argument %q", rest[0])
	}
	if p.rounds < 1 {
		return errors.New("-rounds: must be at least 1")
	}
	if p.scale <= 0 || p.scale > 100 {
		return errors.New("-scale: must be above 0 and at most 100")
	}
	if p.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	return nil
}

// suite measures all chosen variants, round by round, each in a process of its own.
func suite(ctx context.Context, args []string) error {
	var p plan
	if err := p.parse(args); err != nil {
		return err
	}
	if p.doc != "" {
		if _, err := readDocument(p.doc); err != nil {
			return err // fail now and not after an hour
		}
	}
	return p.run(ctx, func(all *servers, r *report) (failed []error) {
		outcomes := r.outcomes()
		if p.profile != "" {
			failed = r.profiles(ctx, all, outcomes)
		}
		fmt.Println()
		r.table(os.Stdout)
		fmt.Println(r.effort())
		if p.doc != "" {
			failed = append(failed, r.writeDocument(p.doc, outcomes))
		}
		fmt.Println()
		return append(failed, json.NewEncoder(os.Stdout).Encode(outcomes))
	})
}

// run measures what the plan chooses, on servers of its own, and has the results reported unless ctx has
// ended.
func (p plan) run(ctx context.Context, tell func(*servers, *report) []error) (err error) {
	all, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	defer func() { err = errors.Join(err, dropAllRetained(context.WithoutCancel(ctx), all.databaseURL)) }()
	r := &report{plan: p, machine: describe(ctx, all), results: map[string][]Result{}, begun: time.Now()}
	failed := r.measure(ctx, all, os.Stdout)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.took = time.Since(r.begun)
	return errors.Join(append(failed, tell(all, r)...)...)
}

// measure runs all rounds. A failed variant is reported and left out; the other variants go on.
func (r *report) measure(ctx context.Context, all *servers, out io.Writer) (failed []error) {
	for round := 1; round <= r.plan.rounds; round++ {
		for _, s := range scenarios() {
			for _, v := range r.plan.choose(s) {
				result, err := r.quietest(ctx, all, s, v)
				if ctx.Err() != nil {
					return failed
				}
				if err != nil {
					err = fmt.Errorf("round %d: %s %s: %w", round, s.name, v.name, err)
					fmt.Fprintln(os.Stderr, "bench:", err)
					failed = append(failed, err)
					continue
				}
				result.Round = round
				r.results[s.name+"/"+v.name] = append(r.results[s.name+"/"+v.name], result)
				if err := json.NewEncoder(out).Encode(result); err != nil {
					return append(failed, err)
				}
			}
		}
	}
	return failed
}

// choose returns the variants of a scenario to measure.
func (p plan) choose(s scenario) []variant {
	wanted := func(v variant) bool {
		return s.apart == p.apart && (p.quick && v.quick > 0 || !p.quick && v.full > 0) && p.only.MatchString(s.name+"/"+v.name)
	}
	limits := map[string]bool{}
	for _, v := range s.variants {
		if wanted(v) {
			limits[v.limit] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(s.variants), func(v variant) bool { return !wanted(v) && !limits[v.name] })
}

// noisy is the share of the machine used by other programs from which a full run measures again.
const noisy = 0.25

// quietest measures a variant, and once more if other programs used the machine meanwhile.
// Repetitions take at most a tenth of the run, since they are useless on a permanently busy
// machine.
func (r *report) quietest(ctx context.Context, all *servers, s scenario, v variant) (Result, error) {
	first, err := child(ctx, all, s, v, r.plan, "")
	if err != nil || r.plan.quick || first.OtherLoad == nil || *first.OtherLoad <= noisy || r.again > time.Since(r.begun)/10 {
		return first, err
	}
	begun := time.Now()
	second, err := child(ctx, all, s, v, r.plan, "")
	r.again += time.Since(begun)
	if err != nil || second.OtherLoad == nil || *second.OtherLoad > *first.OtherLoad {
		return first, err
	}
	return second, nil
}

// child measures a variant in a process of its own.
func child(ctx context.Context, all *servers, s scenario, v variant, p plan, profile string) (result Result, err error) {
	self, err := os.Executable()
	if err != nil {
		return result, err
	}
	n := max(1, int(float64(v.size(p.quick))*p.scale))
	args := []string{"run", s.name, v.name, "-keep", "-profile", profile, "-n", strconv.Itoa(n),
		"-scale", strconv.FormatFloat(p.scale, 'g', -1, 64)}
	if p.quick {
		args = append(args, "-quick")
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = all.env()
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	begun := time.Now()
	if err := cmd.Run(); err != nil {
		return result, fmt.Errorf("%w: %s", err, bytes.TrimSpace(complaints.Bytes()))
	}
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		return result, err
	}
	result.Took = significant(time.Since(begun).Seconds())
	return result, nil
}

// profiles measures again, with a CPU profile, each variant that missed a target.
func (r *report) profiles(ctx context.Context, all *servers, outcomes []outcome) (failed []error) {
	if err := os.MkdirAll(r.plan.profile, 0o755); err != nil {
		return []error{err}
	}
	done := map[string]bool{}
	for _, o := range outcomes {
		if o.Met || done[o.of] || len(r.results[o.of]) == 0 {
			continue
		}
		done[o.of] = true
		scenarioName, variantName := o.split()
		s, v, err := find(scenarioName, variantName)
		if err == nil {
			_, err = child(ctx, all, s, v, r.plan, r.plan.profile)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("profile of %s: %w", o.of, err))
			continue
		}
		r.profiled = append(r.profiled, scenarioName+"-"+variantName)
	}
	return failed
}

// dropAllRetained removes the outboxes that measurements have shared.
func dropAllRetained(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return hidden(err)
	}
	defer conn.Close(ctx)
	rows, _ := conn.Query(ctx, `SELECT nspname FROM pg_namespace WHERE nspname LIKE 'bench\_retained\_%'`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		_, failure := conn.Exec(ctx, `DROP SCHEMA `+pgx.Identifier{name}.Sanitize()+` CASCADE`)
		err = errors.Join(err, failure)
	}
	return err
}

// list prints all scenarios and variants.
func list(w io.Writer) {
	for _, s := range scenarios() {
		fmt.Fprintf(w, "%s: %s\n", s.name, s.about)
		for _, v := range s.variants {
			fmt.Fprintf(w, "    %-24s %s\n", v.name, v.about)
		}
	}
}
