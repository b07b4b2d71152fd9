// Command mutants breaks the library in many ways, one at a time, and checks
// that a named test notices each of them.
//
//	mutants [-only name,name] [-parallel n] [-timeout d] [-v]
//	mutants -list [-only name,name]
//
// The tests need servers: run the command by "make mutants". The last line is
// "mutants: N caught / M total"; the exit status is 0 only if all mutants are caught.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxpair/boxpair/test/mutants"
)

func main() {
	os.Exit(run())
}

func run() int {
	only := flag.String("only", "", "names of mutants, separated by commas; all if empty")
	parallel := flag.Int("parallel", runtime.NumCPU()+1, "mutants that are tried at once")
	timeout := flag.Duration("timeout", 90*time.Second, "for one test")
	list := flag.Bool("list", false, "print the mutants, the known hazards and their tests, and exit")
	verbose := flag.Bool("v", false, "print what the tests of uncaught mutants say")
	flag.Parse()
	chosen, err := choose(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return 2
	}
	if *list {
		if err := mutants.List(os.Stdout, chosen, *only == ""); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			return 1
		}
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := newLab(*timeout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return 1
	}
	defer l.close()
	caught := try(ctx, l, chosen, *parallel, *verbose)
	fmt.Printf("mutants: %d caught / %d total\n", caught, len(chosen))
	if caught != len(chosen) {
		return 1
	}
	return 0
}

// choose returns the mutants with one of the names.
func choose(only string) ([]mutants.Mutant, error) {
	all := mutants.All()
	if only == "" {
		return all, nil
	}
	var chosen []mutants.Mutant
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(m mutants.Mutant) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no mutant %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// try tries mutants and returns how many were caught. The mutants of one package come
// one after the other, so that the compiler finds most of its work done.
func try(ctx context.Context, l *lab, chosen []mutants.Mutant, parallel int, verbose bool) int {
	queue := make(chan mutants.Mutant)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		caught int
	)
	for range max(parallel, 1) {
		wg.Go(func() {
			for m := range queue {
				begun := time.Now()
				v := l.try(ctx, m)
				mu.Lock()
				if v.caught {
					caught++
				}
				v.print(m, time.Since(begun), verbose)
				mu.Unlock()
			}
		})
	}
	for _, m := range chosen {
		if ctx.Err() != nil {
			break
		}
		queue <- m
	}
	close(queue)
	wg.Wait()
	return caught
}

// verdict is the outcome for a mutant.
type verdict struct {
	caught bool
	what   string // "caught", "SURVIVED", …
	output string
}

func (v verdict) print(m mutants.Mutant, took time.Duration, verbose bool) {
	fmt.Printf("%-9s %-44s %s %s (%.1f s)\n", v.what, m.Name, m.Test.Package, m.Test.Name, took.Seconds())
	if !v.caught && (verbose || v.what == broken) {
		fmt.Printf("    %s\n", strings.ReplaceAll(strings.TrimSpace(v.output), "\n", "\n    "))
	}
}
