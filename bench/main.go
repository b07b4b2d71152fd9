// Command bench measures this library beside its peers and beside plain code without its
// guarantees, in one run, on one PostgreSQL and one RabbitMQ.
//
//	go run . list                          all scenarios and variants
//	go run . run <scenario> <variant>      one measurement, as a line of JSON
//	go run . suite [-quick]                all of them, as a table; the last line tells the targets
//	go run . check                         what a message costs, against budget.json
//	go run . growth                        curves against keys, topics, payloads, relays, consumers, backlogs and history
//	go run . retention                     how a janitor keeps up
//	go run . backlog [-events n]           healthy events beside the backlog of a dead route
//	go run . operate [-events n]           the commands and the dashboard over a large outbox and inbox
//
// The command starts a PostgreSQL and a RabbitMQ of its own, with fsync on. DATABASE_URL and
// AMQP_URL name other servers; there the command uses a schema and queues of its own, and removes
// them in the end. The CPU time of the servers is known if they run on this machine.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/boxpair/boxpair/bench/operate"
	"github.com/boxpair/boxpair/bench/retention"
)

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

const usage = "use: bench list | run <scenario> <variant> | suite | check | growth | retention | backlog | operate"

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	switch args[0] {
	case "list":
		list(os.Stdout)
		return nil
	case "run":
		return runOne(ctx, args[1:])
	case "suite":
		return suite(ctx, args[1:])
	case "growth":
		return growth(ctx, args[1:])
	case "retention":
		return runRetention(ctx, args[1:])
	case "operate":
		return runOperate(ctx, args[1:])
	case "check":
		return check(ctx, args[1:])
	case "backlog":
		return backlog(ctx, args[1:])
	case "backlog-relay": // part of it
		return backlogRelayProcess(ctx, os.Stdin, os.Stdout)
	case "relay-process": // part of a measurement
		return relayProcess(ctx, os.Stdin, os.Stdout)
	}
	return fmt.Errorf("there is no command %q; %s", args[0], usage)
}

// runOne measures one variant in this process.
func runOne(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	s := &stage{}
	flags.IntVar(&s.n, "n", 0, "messages to measure; 0 is what the variant says")
	flags.BoolVar(&s.quick, "quick", false, "as many messages as suite -quick measures")
	flags.Float64Var(&s.scale, "scale", 1, "a part of the delivered events that a log holds, and of the time that is spent idle")
	flags.BoolVar(&s.keep, "keep", false, "keep the log of delivered events that later measurements share")
	flags.StringVar(&s.profile, "profile", "", "directory for a CPU profile of the measured part")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 2 {
		return errors.New("use: bench run <scenario> <variant> [flags]")
	}
	_, v, err := find(rest[0], rest[1])
	if err != nil {
		return err
	}
	if s.scale <= 0 {
		return errors.New("-scale: must be above 0")
	}
	if s.n < 0 {
		return errors.New("-n: must not be negative")
	}
	if s.n == 0 {
		s.n = v.size(s.quick)
	}
	all, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	s.databaseURL, s.amqpURL, s.name = all.databaseURL, all.amqpURL, rest[0]+"-"+v.name
	result, err := s.measure(ctx, rest[0], v)
	if err != nil {
		return fmt.Errorf("%s %s: %w", rest[0], v.name, err)
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// runRetention measures how a janitor keeps up.
func runRetention(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("retention", flag.ContinueOnError)
	var cfg retention.Config
	flags.IntVar(&cfg.Events, "events", 1_000_000, "delivered events in the outbox; 0 leaves that out")
	flags.IntVar(&cfg.Inbox, "inbox", 1_000_000, "dispatch IDs in the inbox; 0 leaves that out")
	flags.Float64Var(&cfg.Share, "share", 0.5, "the janitor's share of the time")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("retention takes no argument %q", rest[0])
	}
	all := &servers{databaseURL: os.Getenv("DATABASE_URL"), amqpURL: "none is needed"}
	if err := all.start(ctx, settings); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	return retention.Run(ctx, all.databaseURL, cfg)
}

// runOperate measures the commands and the dashboard of operators.
func runOperate(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("operate", flag.ContinueOnError)
	var cfg operate.Config
	flags.IntVar(&cfg.Events, "events", 1_000_000, "events in the outbox, and dispatch IDs in the inbox; one in a hundred is dead")
	flags.BoolVar(&cfg.Keep, "keep", false, "keep the database for the next run with as many events; DATABASE_URL names its server")
	flags.IntVar(&cfg.Runs, "runs", 5, "how often each command and page is timed")
	flags.StringVar(&cfg.Only, "only", "", "only the commands and pages that contain this text")
	flags.BoolVar(&cfg.Redrive, "redrive", false, "then redrive all dead events beside live traffic")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("operate takes no argument %q", rest[0])
	}
	all := &servers{databaseURL: os.Getenv("DATABASE_URL"), amqpURL: "none is needed"}
	if err := all.start(ctx, settings); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	return operate.Run(ctx, all.databaseURL, cfg)
}

// parse parses flags before, between and behind the other arguments, and returns these arguments.
func parse(flags *flag.FlagSet, args []string) (rest []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return rest, nil
		}
		rest = append(rest, flags.Arg(0))
		args = flags.Args()[1:]
	}
}
