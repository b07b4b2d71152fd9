// Command soak runs a chain on servers of its own under load and faults, and counts lost, repeated
// and reordered events. See docs/soak.md.
//
//	soak [-for 60s] [-batches] [-seed n] [-report file]
//
// The last line is the report as JSON. The exit status is 0 only if enough work was done and no
// violation was found.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/soak"
)

func main() {
	child.Main() // this program also runs as the processes that it kills
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run() error {
	duration := flag.Duration("for", time.Minute, "time of load and faults")
	seed := flag.Uint64("seed", 0, "of what is done when; 0 is a new one")
	batches := flag.Bool("batches", false, "batches of relays, sets of messages in handlers, and more events in a transaction")
	stored := flag.Bool("store-first", false, "consumers that store messages and run them from their database")
	file := flag.String("report", "", "file for the report, besides the last line")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64() >> 12 // exact in JSON everywhere
	}
	dir, err := os.MkdirTemp("", "boxpair-soak-")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("soak: %v with seed %d, logs in %s\n", *duration, *seed, dir)
	report, err := soak.Run(ctx, soak.Config{Duration: *duration, Seed: *seed, Batches: *batches, StoreFirst: *stored, Dir: dir, Progress: os.Stdout})
	if err != nil {
		return err
	}
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	if *file != "" {
		if err := os.WriteFile(*file, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if !report.Passed() {
		return fmt.Errorf("not passed; logs are in %s", dir)
	}
	return os.RemoveAll(dir)
}
